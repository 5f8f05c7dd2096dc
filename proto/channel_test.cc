#include "proto/channel.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "profiling.grpc.pb.h"

namespace taskd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

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
  grpc::Status GetTrainingDataTraceSwitch(grpc::ServerContext*, const DataStatusReq*, DataStatusRes* reply) override {
    reply->set_code(200);
    return grpc::Status::OK;
  }
};

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
  void MakeTlsDir(const std::string& name, const std::string& ca) {
    fs::create_directory(folder_ / name);
    Run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name +
        "/tls.key -out csr && printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' >ext && openssl x509 -req -in csr "
        "-CA " +
        ca + ".crt -CAkey " + ca + ".key -CAcreateserial -days 2 -extfile ext -out " + name + "/tls.crt && cp " + ca +
        ".crt " + name + "/ca.crt");
  }

  grpc::Status Call(int port, const Security& security) {
    auto channel = MakeChannel("127.0.0.1:" + std::to_string(port), security);
    if (!channel.ok()) return {grpc::StatusCode::INTERNAL, std::string(channel.status().message())};
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    DataStatusRes reply;
    return TrainingDataTrace::NewStub(*channel)->GetTrainingDataTraceSwitch(&context, {}, &reply);
  }

  fs::path folder_;
};

TEST_F(TlsTest, OnlyPeersOfTheCaAreServed) {
  auto credentials = MakeServerCredentials({folder_ / "server", ""});
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EchoService service;
  grpc::ServerBuilder builder;
  SetServerLimits(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", *credentials, &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  grpc::Status status = Call(port, {folder_ / "client", ""});
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(port, {folder_ / "stranger", ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(port, {}).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AMissingFileIsNamed) {
  fs::remove(folder_ / "client/tls.key");
  Security security{folder_ / "client", ""};
  EXPECT_THAT(std::string(MakeChannel("127.0.0.1:1", security).status().message()), HasSubstr("tls.key"));
  EXPECT_THAT(std::string(MakeServerCredentials(security).status().message()), HasSubstr("tls.key"));
  EXPECT_EQ(MakeServerCredentials(security).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace taskd
