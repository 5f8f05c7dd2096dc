// A mark's name, 8 bytes at a time: length, copy and kind in one pass over it.
//
// A word may be read beyond the terminating NUL but never beyond the NUL's page, so no read can fault.
#pragma once

#include <cstdint>

#include "taskd/ring.h"

// The bytes beyond the NUL are somebody else's; what is read of them is masked out, which sanitizers cannot know.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TASKD_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TASKD_SANITIZED
#endif
#ifdef TASKD_SANITIZED
#define TASKD_READS_BEYOND_NUL __attribute__((noinline, no_sanitize("address"), no_sanitize("thread")))
#else
#define TASKD_READS_BEYOND_NUL __attribute__((always_inline)) inline
#endif

namespace taskd::worker {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "names are compared and copied as little endian words");

inline constexpr uint64_t kLowBits = 0x0101010101010101;
inline constexpr uint64_t kHighBits = 0x8080808080808080;
inline constexpr uintptr_t kSmallestPageBytes = 4096;

// Bit 7 of the lowest zero byte is set, and no bit below it; 0: no byte is zero.
constexpr uint64_t ZeroByteMask(uint64_t word) { return (word - kLowBits) & ~word & kHighBits; }

constexpr uint64_t NameWord(const char (&text)[9]) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= uint64_t{static_cast<uint8_t>(text[i])} << 8 * i;
  return word;
}

// Far from its page's end a name is read without a further look.
enum class NamePlace { kAnywhere, kNearPageEnd };

// Not all of [name, name + bytes) is in name's page. True for null, too, which spares its own question.
inline bool IsNearPageEnd(const char* name, uintptr_t bytes) {
  return ((reinterpret_cast<uintptr_t>(name) - 1) & (kSmallestPageBytes - 1)) > kSmallestPageBytes - bytes - 1;
}

template <NamePlace kPlace>
TASKD_READS_BEYOND_NUL uint64_t LoadNameWord(const char* name) {
  uint64_t word = 0;
  if (kPlace == NamePlace::kNearPageEnd &&
      (reinterpret_cast<uintptr_t>(name) & (kSmallestPageBytes - 1)) > kSmallestPageBytes - 8) {
    for (int i = 0; i < 8 && name[i] != '\0'; ++i) word |= uint64_t{static_cast<uint8_t>(name[i])} << 8 * i;
    return word;
  }
  __builtin_memcpy(&word, name, sizeof(word));
  return word;
}

// Constant trip count: unrolled into a few compares. Reads no further than the first difference.
template <int kBytes>
inline bool EqualsFrom(const char* name, const char (&rest)[kBytes]) {
  for (int i = 0; i < kBytes; ++i) {
    if (name[i] != rest[i]) return false;
  }
  return true;
}

// "step " was seen; the three bytes after it are in the word's upper half.
inline bool IsStepNumber(uint64_t first_word, const char* name) {
  const uint64_t digits = (first_word >> 40 ^ 0x303030) & 0xffffff;
  // Bit 7 of every byte above 9; the mask keeps the sum from carrying into the next byte.
  const uint64_t not_digit = (((digits & 0x7f7f7f) + 0x767676) | digits) & 0x808080;
  if (__builtin_expect(not_digit == 0, false)) {
    const char* rest = name + 8;
    while (*rest >= '0' && *rest <= '9') ++rest;
    return *rest == '\0';
  }
  const int digit_bits = __builtin_ctzll(not_digit) & ~7;
  return digit_bits != 0 && (first_word >> (40 + digit_bits) & 0xff) == 0;
}

// The kind of a name outside the domain "communication". `first_word` is LoadNameWord(name).
__attribute__((always_inline)) inline ring::Kind ClassifyName(uint64_t first_word, const char* name) {
  constexpr uint64_t kStepMask = 0xffffffffff;
  constexpr uint64_t kStep = NameWord("step \0\0\0");
  if ((first_word & kStepMask) == kStep) {
    return IsStepNumber(first_word, name) ? ring::kKindStep : ring::kKindOther;
  }
  if (first_word == NameWord("forward\0")) return ring::kKindForward;
  if (first_word == NameWord("dataload") && EqualsFrom(name + 8, "er")) return ring::kKindDataLoader;
  if (first_word == NameWord("save_che") && EqualsFrom(name + 8, "ckpoint")) return ring::kKindSaveCheckpoint;
  return ring::kKindOther;
}

struct NameCopy {
  uint64_t word;   // the last one
  uint32_t bytes;  // up to ring::kMaxNameBytes
  bool truncated;
};

// Writes up to 32 words. `first_word` is LoadNameWord(name).
template <NamePlace kPlace>
__attribute__((always_inline)) inline NameCopy CopyName(uint64_t* out, uint64_t first_word, const char* name) {
  constexpr uint32_t kLastByte = ring::kMaxNameBytes / 8 * 8;  // of the word that is cut
  uint64_t word = first_word;
  uint64_t zero = ZeroByteMask(word);
  uint32_t bytes = 0;
  while (zero == 0 && bytes != kLastByte) {
    __atomic_store_n(out++, word, __ATOMIC_RELAXED);
    bytes += 8;
    word = LoadNameWord<kPlace>(name + bytes);
    zero = ZeroByteMask(word);
  }
  constexpr uint64_t kCutZero = uint64_t{0x80} << ring::kMaxNameBytes % 8 * 8;
  const bool truncated = bytes == kLastByte && (zero == 0 || (zero & -zero) > kCutZero);
  if (__builtin_expect(truncated, false)) zero = kCutZero;  // as if the NUL were there
  // All bits below the zero byte's: none where it is the first.
  word &= (zero ^ (zero - 1)) >> 8;
  __atomic_store_n(out, word, __ATOMIC_RELAXED);
  return {word, bytes + (static_cast<uint32_t>(__builtin_ctzll(zero)) >> 3), truncated};
}

}  // namespace taskd::worker
