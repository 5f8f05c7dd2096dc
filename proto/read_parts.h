// Answers that come in parts (control.proto, diagnosis.proto).
#pragma once

#include <memory>

#include "grpcpp/support/sync_stream.h"

namespace taskd::proto {

// Reads the whole answer.
template <typename Message>
grpc::Status ReadParts(std::unique_ptr<grpc::ClientReader<Message>> parts, Message* whole) {
  Message part;
  while (parts->Read(&part)) whole->MergeFrom(part);
  return parts->Finish();
}

}  // namespace taskd::proto
