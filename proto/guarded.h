// Requests of gRPC that are counted before they are built (proto/built_size.h). A service of callbacks reads Guarded<M>
// in place of M: its constructor replaces the generated handler,
//   MarkMethodCallback(0, GuardedUnary<Request, Reply>([this](auto* context, const auto* request, auto* reply) {
//     return Report(context, request, reply);
//   }));
// where 0 is the method's place in the .proto file.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/server_callback.h"
#include "proto/built_size.h"

namespace taskd::proto {

template <typename Message>
struct Guarded {
  Message message;
  absl::Status refusal;  // not OK: the message is empty

  void Clear() {
    message.Clear();
    refusal = absl::OkStatus();
  }
};

inline grpc::Status RefusalStatus(const absl::Status& refusal) {
  return {static_cast<grpc::StatusCode>(refusal.code()), std::string(refusal.message())};
}

template <typename Request, typename Reply>
grpc::internal::MethodHandler* GuardedUnary(
    std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const Request*, Reply*)> call) {
  return new grpc::internal::CallbackUnaryHandler<Guarded<Request>, Reply>(
      [call = std::move(call)](grpc::CallbackServerContext* context, const Guarded<Request>* request, Reply* reply) {
        if (request->refusal.ok()) return call(context, &request->message, reply);
        grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
        reactor->Finish(RefusalStatus(request->refusal));
        return reactor;
      });
}

template <typename Request, typename Reply>
grpc::internal::MethodHandler* GuardedServerStream(
    std::function<grpc::ServerWriteReactor<Reply>*(grpc::CallbackServerContext*, const Request*)> call) {
  struct Refused final : grpc::ServerWriteReactor<Reply> {
    explicit Refused(const grpc::Status& status) { this->Finish(status); }
    void OnDone() override { delete this; }
  };
  return new grpc::internal::CallbackServerStreamingHandler<Guarded<Request>, Reply>(
      [call = std::move(call)](grpc::CallbackServerContext* context,
                               const Guarded<Request>* request) -> grpc::ServerWriteReactor<Reply>* {
        if (request->refusal.ok()) return call(context, &request->message);
        return new Refused(RefusalStatus(request->refusal));
      });
}

// The reactor looks at the refusal of each message that it reads.
template <typename In, typename Out>
grpc::internal::MethodHandler* GuardedStream(
    std::function<grpc::ServerBidiReactor<Guarded<In>, Out>*(grpc::CallbackServerContext*)> call) {
  return new grpc::internal::CallbackBidiHandler<Guarded<In>, Out>(std::move(call));
}

}  // namespace taskd::proto

namespace grpc {

template <typename Message>
class SerializationTraits<taskd::proto::Guarded<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, taskd::proto::Guarded<Message>* out) {
    {
      ProtoBufferReader wire(buffer);
      if (!wire.status().ok()) return wire.status();
      out->refusal = taskd::proto::CheckBuiltSize(*Message::descriptor(), &wire);
    }
    if (out->refusal.ok()) {
      if (!SerializationTraits<Message>::Deserialize(buffer, &out->message).ok()) {
        out->message.Clear();
        out->refusal = absl::InvalidArgumentError("the message cannot be parsed");
      }
    } else {
      buffer->Clear();
    }
    return Status::OK;
  }
};

}  // namespace grpc
