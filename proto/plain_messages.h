// Requests of calls in plain text, as messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/built_size.h"

namespace taskd::proto {

// As a Guarded request (proto/guarded.h): counted before it is built.
template <typename Message>
absl::Status ParsePlain(const std::string& bytes, Message* message) {
  google::protobuf::io::ArrayInputStream wire(bytes.data(), static_cast<int>(bytes.size()));
  absl::Status sound = CheckBuiltSize(*Message::descriptor(), &wire);
  if (!sound.ok()) return sound;
  if (message->ParseFromString(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError("the message cannot be parsed");
}

}  // namespace taskd::proto
