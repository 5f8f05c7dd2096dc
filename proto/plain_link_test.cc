// A connection to ClusterD, for gRPC: what is passed on, what is not, and what is said of one that failed.
#include "proto/plain_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/listen.h"
#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "profiling.grpc.pb.h"
#include "proto/test_http2_client.h"

namespace taskd::proto {
namespace {

using ::testing::HasSubstr;

class Echo final : public TrainingDataTrace::Service {
 public:
  explicit Echo(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  grpc::Status GetTrainingDataTraceSwitch(grpc::ServerContext*, const DataStatusReq* request,
                                          DataStatusRes* reply) override {
    reply->set_message(request->jobnsname());
    return grpc::Status::OK;
  }
  grpc::Status SubscribeDataTraceSwitch(grpc::ServerContext* context, const ProfilingClientInfo*,
                                        grpc::ServerWriter<DataStatusRes>* writer) override {
    DataStatusRes message;
    message.set_message(std::string(1 << 20, 'm'));
    while (!context->IsCancelled() && writer->Write(message)) {
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Answers the first bytes of one connection with bytes of its own, and reads until the client has gone.
class Raw {
 public:
  explicit Raw(std::string answer)
      : listener_(*ListenTcp({"127.0.0.1", 0}, false)), thread_([this, answer = std::move(answer)] {
          pollfd waiting = {listener_.get(), POLLIN, 0};
          poll(&waiting, 1, testing::kHangLimitMs);
          UniqueFd connection(accept(listener_.get(), nullptr, nullptr));
          std::string buffer(1 << 16, '\0');
          recv(connection.get(), buffer.data(), buffer.size(), 0);
          send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
          while (recv(connection.get(), buffer.data(), buffer.size(), 0) > 0) {
          }
        }) {}
  ~Raw() { thread_.join(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(LocalPort(listener_.get())); }

 private:
  UniqueFd listener_;
  std::thread thread_;
};

grpc::Status Get(const PlainLink& link, const std::string& name, std::string* answer = nullptr) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
  DataStatusReq request;
  request.set_jobnsname(name);
  DataStatusRes reply;
  grpc::Status status =
      TrainingDataTrace::NewStub(link.channel())->GetTrainingDataTraceSwitch(&context, request, &reply);
  if (answer != nullptr) *answer = reply.message();
  return link.Explain(status);
}

TEST(PlainLinkTest, CallsGoThroughIt) {
  Echo server;
  absl::StatusOr<PlainLink> link = PlainLink::Begin(server.address());
  ASSERT_TRUE(link.ok());
  std::string answer;
  for (const std::string& name : {std::string("job"), std::string(3 << 20, 'n')}) {
    ASSERT_TRUE(Get(*link, name, &answer).ok());
    EXPECT_EQ(answer, name);
  }
  grpc::ClientContext context;
  auto reader = TrainingDataTrace::NewStub(link->channel())->SubscribeDataTraceSwitch(&context, {});
  DataStatusRes message;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(PlainLinkTest, SaysWhyThereIsNoConnection) {
  absl::StatusOr<PlainLink> link = PlainLink::Begin("127.0.0.1:" + std::to_string(testing::FreePort()));
  ASSERT_TRUE(link.ok());
  const grpc::Status status = Get(*link, "job");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("Connection refused"));
  link = PlainLink::Begin("no-such-host.invalid:1");
  ASSERT_TRUE(link.ok());
  EXPECT_THAT(Get(*link, "job").error_message(), HasSubstr("ame"));
  EXPECT_FALSE(PlainLink::Begin("nonsense").ok());
}

TEST(PlainLinkTest, AHeaderBlockWithoutEndIsNotPassedOn) {
  std::string block = Http2Frame(4, 0, 0, "") + Http2Frame(1, 0, 1, "\x88");
  for (int i = 0; i < 3; ++i)
    block += Http2Frame(9, 0, 1, HpackLiteral("x", std::string(100, 'v')) + std::string(8000, '\x88'));
  Raw server(block);
  absl::StatusOr<PlainLink> link = PlainLink::Begin(server.address());
  ASSERT_TRUE(link.ok());
  const grpc::Status status = Get(*link, "job");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "it sends too many header bytes");
}

TEST(PlainLinkTest, AFloodOfFramesIsNotPassedOn) {
  std::string pings = Http2Frame(4, 0, 0, "");
  for (int i = 0; i < 1200; ++i) pings += Http2Frame(6, 0, 0, std::string(8, '\0'));
  Raw server(pings);
  absl::StatusOr<PlainLink> link = PlainLink::Begin(server.address());
  ASSERT_TRUE(link.ok());
  EXPECT_EQ(Get(*link, "job").error_message(), "it sends too many frames");
}

}  // namespace
}  // namespace taskd::proto
