#include "proto/channel.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "profiling.grpc.pb.h"
#include "proto/grpc_listener.h"

namespace taskd::proto {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(CheckListenAllowedTest, BeyondLoopbackNeedsProtection) {
  for (const char* loopback : {"127.0.0.1:0", "localhost:1", "[::1]:9601"}) {
    EXPECT_TRUE(CheckListenAllowed(loopback, {}, false).ok()) << loopback;
  }
  for (const char* open : {"0.0.0.0:9601", "10.0.0.1:9601", "[::]:9601", "node-0:9601"}) {
    absl::Status status = CheckListenAllowed(open, {}, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(open));
    EXPECT_TRUE(CheckListenAllowed(open, {"", "token"}, false).ok());
    EXPECT_TRUE(CheckListenAllowed(open, {"/tls", ""}, false).ok());
    EXPECT_TRUE(CheckListenAllowed(open, {}, true).ok());
  }
  EXPECT_FALSE(CheckListenAllowed("nonsense", {}, true).ok());
}

class EchoService final : public TrainingDataTrace::Service {
 public:
  std::string peer;  // of the last call

 private:
  grpc::Status GetTrainingDataTraceSwitch(grpc::ServerContext* context, const DataStatusReq*,
                                          DataStatusRes* reply) override {
    peer = PeerOf(context->peer());
    reply->set_code(200);
    return grpc::Status::OK;
  }
};

// A server of `credentials` behind a listener.
class Served {
 public:
  explicit Served(const Security& security) {
    grpc::ServerBuilder builder;
    SetServerLimits(builder, size_t{64} << 20);
    fed_ = std::make_unique<FedServer>(builder);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    auto tls = MakeServerTls(security);
    EXPECT_TRUE(tls.ok()) << tls.status();
    auto listener = GrpcListener::Listen({"127.0.0.1", 0}, {}, *tls, [this](GrpcListener::Speaks speaks, UniqueFd fd) {
      if (speaks == GrpcListener::Speaks::kTls) fed_->Take(std::move(fd));
    });
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  ~Served() {
    listener_->Stop();
    server_->Shutdown();
    server_->Wait();
  }
  int port() const { return listener_->port(); }
  std::string peer() { return service_.peer; }

 private:
  EchoService service_;
  std::unique_ptr<FedServer> fed_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcListener> listener_;
};

grpc::Status Call(int port, const Security& security, std::function<void()> on_stranger = nullptr) {
  auto channel = MakeChannel("127.0.0.1:" + std::to_string(port), security, std::move(on_stranger));
  if (!channel.ok()) return {grpc::StatusCode::INTERNAL, std::string(channel.status().message())};
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
  DataStatusRes reply;
  return TrainingDataTrace::NewStub(*channel)->GetTrainingDataTraceSwitch(&context, {}, &reply);
}

TEST(SecretTest, BothSidesMustHaveIt) {
  Served served({"", "of the job"});
  std::atomic<int> strangers = 0;
  auto count = [&] { ++strangers; };
  grpc::Status status = Call(served.port(), {"", "of the job"}, count);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(strangers, 0);
  EXPECT_THAT(served.peer(), MatchesRegex("ipv4:127\\.0\\.0\\.1:[0-9]+"));
  for (const char* other : {"", "of the jo", "of the job "}) {
    strangers = 0;
    status = Call(served.port(), {"", other}, count);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "'" << other << "'";
    EXPECT_THAT(status.error_message(), HasSubstr("does not have this job's secret"));
    EXPECT_GE(strangers, 1);
  }
}

TEST(SecretTest, NobodyThereIsNoStranger) {
  std::atomic<int> strangers = 0;
  EXPECT_EQ(Call(testing::FreePort(), {"", "x"}, [&] { ++strangers; }).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(strangers, 0);
}

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-tls-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    MakeCa("ca");
    MakeCa("other");
    MakeTlsDir("server", "ca");
    MakeTlsDir("client", "ca");
    MakeTlsDir("stranger", "other");
    // Trusts the right CA, but has a certificate of another one.
    fs::copy_file(folder_ / "ca.crt", folder_ / "stranger/ca.crt", fs::copy_options::overwrite_existing);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Run(const std::string& command) {
    ASSERT_EQ(std::system(("cd " + folder_.string() + " && ( " + command + " ) >>log 2>&1").c_str()), 0) << command;
  }
  void MakeCa(const std::string& name) {
    Run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name + " -keyout " +
        name + ".key -out " + name + ".crt");
  }
  void MakeTlsDir(const std::string& name, const std::string& ca,
                  const std::string& names = "DNS:localhost,IP:127.0.0.1") {
    fs::create_directory(folder_ / name);
    Run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name +
        "/tls.key -out csr && printf 'subjectAltName=" + names +
        "' >ext && openssl x509 -req -in csr "
        "-CA " +
        ca + ".crt -CAkey " + ca + ".key -CAcreateserial -days 2 -extfile ext -out " + name + "/tls.crt && cp " + ca +
        ".crt " + name + "/ca.crt");
  }

  fs::path folder_;
};

TEST_F(TlsTest, OnlyPeersOfTheCaAreServed) {
  Served served({folder_ / "server", ""});
  const int port = served.port();

  grpc::Status status = Call(port, {folder_ / "client", ""});
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(port, {folder_ / "stranger", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(port, {}).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ANameIsDemandedOfBothSides) {
  MakeTlsDir("job", "ca", "DNS:job-7.example");
  MakeTlsDir("wild", "ca", "DNS:*.example");
  const auto with_name = [&](const char* folder, const char* name) {
    return Security{.tls_dir = folder_ / folder, .secret = "", .tls_name = name};
  };
  Served served(with_name("job", "job-7.example"));
  grpc::Status status = Call(served.port(), with_name("job", "job-7.example"));
  EXPECT_TRUE(status.ok()) << status.error_message();
  // The client's certificate is for another name, or for more than one.
  EXPECT_FALSE(Call(served.port(), with_name("client", "job-7.example")).ok());
  EXPECT_FALSE(Call(served.port(), with_name("wild", "job-7.example")).ok());
  // The server's is not for the name that the client wants, or for the host that it dials.
  status = Call(served.port(), with_name("job", "job-8.example"));
  EXPECT_THAT(status.error_message(), HasSubstr("job-8.example"));
  EXPECT_FALSE(Call(served.port(), with_name("job", "")).ok());
  // Without a name a server takes every certificate of the CA.
  Served any(with_name("server", ""));
  EXPECT_TRUE(Call(any.port(), with_name("job", "localhost")).ok());
  EXPECT_EQ(MakeServerTls(Security{.tls_dir = "", .secret = "x", .tls_name = "name"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsTest, AMissingFileIsNamed) {
  fs::remove(folder_ / "client/tls.key");
  Security security{folder_ / "client", ""};
  EXPECT_THAT(std::string(MakeChannel("127.0.0.1:1", security).status().message()), HasSubstr("tls.key"));
  EXPECT_THAT(std::string(MakeServerTls(security).status().message()), HasSubstr("tls.key"));
  EXPECT_EQ(MakeServerTls(security).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsTest, AKeyThatOthersCanReadIsRefused) {
  Security security{folder_ / "client", ""};
  fs::permissions(folder_ / "client/tls.key", fs::perms(0604));
  EXPECT_THAT(std::string(MakeChannel("127.0.0.1:1", security).status().message()),
              AllOf(HasSubstr("tls.key"), HasSubstr("mode 604")));
  fs::permissions(folder_ / "client/tls.key", fs::perms(0640));  // a group, as Kubernetes' fsGroup
  EXPECT_TRUE(MakeChannel("127.0.0.1:1", security).ok());
  if (geteuid() == 0) {
    ASSERT_EQ(chown((folder_ / "client/tls.key").c_str(), 2002, 0), 0);
    EXPECT_THAT(std::string(MakeChannel("127.0.0.1:1", security).status().message()), HasSubstr("user 2002"));
  }
  EXPECT_EQ(MakeServerTls({folder_ / "ca", ""}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace taskd::proto
