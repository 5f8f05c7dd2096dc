// The names of NCCL's operations as marks in the domain communication: JSON with the fields that torch_npu gives HCCL's
// operations (TaskD contract §4.4), `ranks` and `rank`. The same text whoever sees the operation, NCCL's profiler plugin
// or this library in front of NCCL's functions. No allocation; what does not fit is left out.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <iterator>

namespace taskd::nccl {

constexpr int kNameBytes = 255;

// The part of a name that is written next.
class NameWriter {
 public:
  explicit NameWriter(char (&out)[kNameBytes]) : p_(out), end_(out + kNameBytes - 1) {}
  ~NameWriter() { *p_ = '\0'; }
  NameWriter(const NameWriter&) = delete;
  NameWriter& operator=(const NameWriter&) = delete;

  NameWriter& Text(const char* text) {
    while (*text != '\0' && p_ < end_) *p_++ = *text++;
    return *this;
  }
  // Within a JSON string.
  NameWriter& Plain(const char* text, int max_bytes) {
    for (; max_bytes-- > 0 && *text != '\0' && p_ < end_; ++text) {
      *p_++ = *text == '"' || *text == '\\' || static_cast<unsigned char>(*text) < 0x20 ? '_' : *text;
    }
    return *this;
  }
  NameWriter& Number(uint64_t number) {
    char reversed[20];
    int count = 0;
    do {
      reversed[count++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    while (count > 0 && p_ < end_) *p_++ = reversed[--count];
    return *this;
  }
  // 16 digits.
  NameWriter& Hexadecimal(uint64_t number) {
    for (int shift = 60; shift >= 0 && p_ < end_; shift -= 4) *p_++ = "0123456789abcdef"[number >> shift & 15];
    return *this;
  }
  NameWriter& Field(const char* key, uint64_t number) {
    return Text(",\"").Text(key).Text("\": \"").Number(number).Text("\"");
  }

 private:
  char* p_;
  char* const end_;
};

struct TypeName {
  const char* nccl;
  const char* ours;
};

// torch_npu's names of the types, which all readers know. In NCCL's order: its C functions and plugin interface v1 have
// the number (ncclDataType_t).
inline constexpr TypeName kTypeNames[] = {
    {"ncclInt8", "int8"},    {"ncclUint8", "uint8"},    {"ncclInt32", "int32"},        {"ncclUint32", "uint32"},
    {"ncclInt64", "int64"},  {"ncclUint64", "uint64"},  {"ncclFloat16", "fp16"},       {"ncclFloat32", "fp32"},
    {"ncclFloat64", "fp64"}, {"ncclBfloat16", "bfp16"}, {"ncclFloat8e4m3", "fp8e4m3"}, {"ncclFloat8e5m2", "fp8e5m2"},
};
inline constexpr char kUnknownType[] = "na";

inline const char* TypeNameOf(const char* nccl) {
  if (nccl == nullptr) return kUnknownType;
  for (const TypeName& name : kTypeNames) {
    if (strcmp(nccl, name.nccl) == 0) return name.ours;
  }
  return kUnknownType;
}

inline const char* TypeNameOf(int number) {
  const size_t index = static_cast<size_t>(number);
  return index < std::size(kTypeNames) ? kTypeNames[index].ours : kUnknownType;
}

// Up to where the group's name follows, and from there to the ranks. `function` is without "nccl".
inline void AppendSize(NameWriter& out, uint64_t count, const char* data_type) {
  out.Text("{\"count\": \"").Number(count).Text("\",\"streamId\": \"0\",\"dataType\": \"").Text(data_type);
  out.Text("\",\"groupName\": \"");
}
inline void AppendFunction(NameWriter& out, const char* function) {
  out.Text("\",\"opName\": \"nccl").Plain(function, 24).Text("\"");
}

// `ranks` is 0 where it is not known.
inline void AppendRanks(NameWriter& out, int ranks, int rank) {
  if (ranks > 0) out.Field("ranks", static_cast<uint64_t>(ranks));
  out.Field("rank", static_cast<uint64_t>(rank));
}

// Of a send or receive. A peer of nobody's is left out.
inline void AppendPeer(NameWriter& out, bool sends, int rank, int peer) {
  if (peer < 0) return;
  const int source = sends ? rank : peer;
  const int destination = sends ? peer : rank;
  out.Field("srcRank", static_cast<uint64_t>(source)).Field("destRank", static_cast<uint64_t>(destination));
}

}  // namespace taskd::nccl
