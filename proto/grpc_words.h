// How gRPC says its messages and statuses in HTTP/2, for what is built around nghttp2.
#pragma once

#include <nghttp2/nghttp2.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "proto/plain_connection.h"

namespace taskd::proto {

// Of what is in memory for as long as nghttp2 takes it.
inline nghttp2_nv Field(std::string_view name, std::string_view value) {
  auto bytes = [](std::string_view text) { return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data())); };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

inline std::array<nghttp2_nv, 2> AnswerFields() {
  return {Field(":status", "200"), Field("content-type", "application/grpc")};
}

inline constexpr size_t kMessageHead = 5;  // before each message: 0 or, where it is compressed, 1; and the length
inline std::string MessageHead(size_t size) {
  return {0, static_cast<char>(size >> 24), static_cast<char>(size >> 16), static_cast<char>(size >> 8),
          static_cast<char>(size)};
}
inline size_t MessageSize(std::string_view head) {
  size_t size = 0;
  for (size_t i = 1; i < kMessageHead; ++i) size = size << 8 | static_cast<unsigned char>(head[i]);
  return size;
}

// The fields of an answer's end.
class StatusFields {
 public:
  explicit StatusFields(const absl::Status& status)
      : code_(absl::StrCat(static_cast<int>(status.code()))),
        text_(PercentEncode(CutUtf8(std::string_view(status.message().data(), status.message().size()), kTextBytes))) {}

  void AddTo(std::vector<nghttp2_nv>* fields) const {
    fields->push_back(Field("grpc-status", code_));
    if (!text_.empty()) fields->push_back(Field("grpc-message", text_));
  }

 private:
  static constexpr size_t kTextBytes = 1024;
  const std::string code_, text_;
};

}  // namespace taskd::proto
