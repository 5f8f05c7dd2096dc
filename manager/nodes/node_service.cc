#include "manager/nodes/node_service.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/support/server_callback.h"
#include "manager/nodes/node_input.h"
#include "manager/nodes/node_stream.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"
#include "taskd/v1/node.grpc.pb.h"

namespace grpc {

template <>
class SerializationTraits<taskd::manager::NodeInput> {
 public:
  static Status Deserialize(ByteBuffer* buffer, taskd::manager::NodeInput* input) {
    Slice wire;
    Status read = buffer->TrySingleSlice(&wire);
    if (!read.ok()) read = buffer->DumpToSingleSlice(&wire);
    if (!read.ok()) return read;
    taskd::manager::ReadNodeInput({reinterpret_cast<const char*>(wire.begin()), wire.size()}, input);
    buffer->Clear();
    return Status::OK;
  }
};

}  // namespace grpc

namespace taskd::manager {
namespace {

constexpr std::string_view kConnect = "/taskd.v1.NodeLink/Connect";

// What the listener carries.
class NodeCall final : public proto::StreamCall {
 public:
  NodeCall(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis, const std::string& peer,
           std::function<void()> ready)
      : stream_(std::move(core), std::move(diagnosis), peer, std::move(ready)) {}

  absl::Status Take(std::string_view message) override {
    NodeInput in;
    ReadNodeInput(message, &in);
    return stream_.Take(in);
  }
  absl::Status Ended() override { return stream_.Ended(); }
  absl::StatusOr<bool> Next(std::string* message) override {
    v1::ManagerMessage next;
    absl::StatusOr<bool> is_one = stream_.Next(&next);
    if (is_one.ok() && *is_one) next.SerializeToString(message);
    return is_one;
  }

 private:
  NodeStream stream_;
};

// What gRPC carries.
using NodeReactorBase = grpc::ServerBidiReactor<NodeInput, v1::ManagerMessage>;
class NodeReactor final : public WritingReactor<NodeReactorBase, v1::ManagerMessage> {
 public:
  NodeReactor(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis, std::string peer)
      : stream_(std::move(core), std::move(diagnosis), std::move(peer), [this] {
          std::lock_guard lock(mutex_);
          WriteNext();
        }) {
    hello_alarm_.Start(kFirstMessageTimeout, [this] { End(NoFirstMessage()); });
    StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    absl::Status status = ok ? stream_.Take(in_) : stream_.Ended();
    if (stream_.has_hello()) hello_alarm_.Stop();
    if (!ok || !status.ok()) return End(StatusOf(status));
    in_.Clear();  // or each stream would keep the largest message that it ever had
    std::lock_guard lock(mutex_);
    if (!ended_) StartRead(&in_);
  }
  void OnDone() override { delete this; }

 private:
  ~NodeReactor() override = default;

  static grpc::Status StatusOf(const absl::Status& status) {
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

  bool FillNext(v1::ManagerMessage* message) override {
    absl::StatusOr<bool> is_one = stream_.Next(message);
    if (!is_one.ok()) EndLocked(StatusOf(is_one.status()));
    return is_one.ok() && *is_one;
  }

  NodeInput in_;
  StreamAlarm hello_alarm_;
  NodeStream stream_;
};

class NodeService final : public v1::NodeLink::CallbackService {
 public:
  NodeService(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis)
      : core_(std::move(core)), diagnosis_(std::move(diagnosis)) {
    // As proto::GuardedStream, for NodeInput.
    MarkMethodCallback(0, new grpc::internal::CallbackBidiHandler<NodeInput, v1::ManagerMessage>(
                              [this](grpc::CallbackServerContext* context) {
                                return new NodeReactor(core_, diagnosis_, proto::PeerOf(context->peer()));
                              }));
  }

 private:
  const std::shared_ptr<ManagerCore> core_;
  const std::shared_ptr<DiagnosisCore> diagnosis_;
};

}  // namespace

proto::GrpcListener::Open OpenNodeStreams(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis) {
  return [core = std::move(core), diagnosis = std::move(diagnosis)](
             std::string_view path, const std::string& peer,
             std::function<void()> ready) -> std::unique_ptr<proto::StreamCall> {
    if (path != kConnect) return nullptr;
    return std::make_unique<NodeCall>(core, diagnosis, peer, std::move(ready));
  };
}

std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core,
                                               std::shared_ptr<DiagnosisCore> diagnosis) {
  return std::make_unique<NodeService>(std::move(core), std::move(diagnosis));
}

}  // namespace taskd::manager
