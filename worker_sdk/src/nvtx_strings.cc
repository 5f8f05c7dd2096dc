#include "nvtx_strings.h"

#include <string.h>
#include <sys/mman.h>

#include "recorder.h"
#include "slow_path.h"

namespace taskd::worker {
namespace {

constexpr size_t kArenaBytes = 64 * 1024;
constexpr char kUnnamed[] = "unnamed";

const char* g_strings[kMaxStrings];
constinit std::atomic<uint32_t> g_string_count{0};
char* g_arena;
size_t g_arena_left;

}  // namespace

uint64_t RegisterText(const char* text) {
  if (text == nullptr) return 0;
  const size_t bytes = strnlen(text, ring::kMaxNameBytes + 1);  // one byte more, or a cut would not be seen
  SlowPath slow_path;
  if (!slow_path.entered()) return 0;
  const uint32_t count = g_string_count.load(std::memory_order_relaxed);
  if (count == kMaxStrings) return 0;
  // 8 bytes more: the recorder reads names by words.
  const size_t needed = (bytes + 1 + 7) / 8 * 8 + 8;
  if (g_arena_left < needed) {
    void* chunk = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) return 0;
    g_arena = static_cast<char*>(chunk);
    g_arena_left = kArenaBytes;
  }
  char* copy = g_arena;
  g_arena += needed;
  g_arena_left -= needed;
  memcpy(copy, text, bytes);  // the chunk is zero
  g_strings[count] = copy;
  g_string_count.store(count + 1, std::memory_order_release);
  return count + 1;
}

// Acquire: the text and its place are there for who sees it counted (RegisterText's release).
const char* TextOf(uint64_t handle) {
  return handle - 1 < g_string_count.load(std::memory_order_acquire) ? g_strings[handle - 1] : kUnnamed;
}

const char* ToUtf8(const wchar_t* text, char (&out)[kMaxUtf8Bytes]) {
  if (text == nullptr) return nullptr;
  char* p = out;
  for (; *text != 0; ++text) {
    auto c = static_cast<uint32_t>(*text);  // NOLINT(bugprone-signed-char-misuse): 32 bits, signed on x86-64 only
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    const int bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (p + bytes > out + ring::kMaxNameBytes) break;
    if (bytes == 1) {
      *p++ = static_cast<char>(c);
      continue;
    }
    constexpr uint8_t kLead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    *p++ = static_cast<char>(kLead[bytes] | c >> 6 * (bytes - 1));
    for (int i = bytes - 2; i >= 0; --i) *p++ = static_cast<char>(0x80 | (c >> 6 * i & 0x3f));
  }
  *p = '\0';
  return out;
}

}  // namespace taskd::worker
