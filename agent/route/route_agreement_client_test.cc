// Against a real manager in this process, and against one that is scripted by the test.
#include "agent/route/route_agreement_client.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "manager/server.h"
#include "manager/test_client.h"
#include "proto/test_credentials.h"
#include "taskd/v1/route_agreement.grpc.pb.h"

namespace taskd::route {
namespace {

using manager::StartManager;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kTable(64, '7');
const std::string kPlan(64, 'a');

AgreeOptions Options(int port, int nodes, int index, int timeout_s = 60) {
  AgreeOptions options;
  options.manager = absl::StrCat("127.0.0.1:", port);
  options.nodes = nodes;
  options.index = index;
  options.timeout_s = timeout_s;
  options.security.secret = manager::kTestSecret;
  return options;
}

absl::StatusOr<RouteDecision> Agree(const AgreeOptions& options,
                                    const route::PlannedRoute& planned = {kTable, kPlan, ""}) {
  absl::StatusOr<std::unique_ptr<RouteAgreement>> agreement = RouteAgreement::Create(options);
  if (!agreement.ok()) return agreement.status();
  absl::StatusOr<RouteDecision> decision = (*agreement)->Decide(planned);
  if (decision.ok() && decision->adopt) (*agreement)->Written();
  return decision;
}

using Decisions = std::vector<absl::StatusOr<RouteDecision>>;

// One thread a node, as each is a process of its own.
Decisions AgreeAll(int port, const std::vector<route::PlannedRoute>& planned, int timeout_s = 60) {
  Decisions decisions(planned.size(), absl::UnknownError(""));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < planned.size(); ++i) {
    threads.emplace_back([&, i] {
      decisions[i] = Agree(Options(port, static_cast<int>(planned.size()), static_cast<int>(i), timeout_s), planned[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return decisions;
}

TEST(RouteAgreementClient, AllAdoptOnePlanTimeAfterTime) {
  std::unique_ptr<manager::ManagerServer> server = StartManager();
  for (int run = 0; run < 10; ++run) {
    for (const auto& decision : AgreeAll(server->port(), std::vector<route::PlannedRoute>(8, {kTable, kPlan, ""}))) {
      ASSERT_TRUE(decision.ok()) << decision.status();
      EXPECT_TRUE(decision->adopt) << decision->reason;
    }
  }
}

TEST(RouteAgreementClient, OneNodeWithoutAPlan) {
  std::unique_ptr<manager::ManagerServer> server = StartManager();
  std::vector<route::PlannedRoute> planned(4, {kTable, kPlan, ""});
  planned[2] = {kTable, "", "topology /t/\xff is not there"};
  for (int run = 0; run < 5; ++run) {
    for (const auto& decision : AgreeAll(server->port(), planned)) {
      ASSERT_TRUE(decision.ok()) << decision.status();
      EXPECT_FALSE(decision->adopt);
      EXPECT_THAT(decision->reason, AllOf(HasSubstr("node 2"), HasSubstr("topology /t/")));
    }
  }
}

TEST(RouteAgreementClient, RankTablesThatDiffer) {
  std::unique_ptr<manager::ManagerServer> server = StartManager();
  std::vector<route::PlannedRoute> planned(3, {kTable, kPlan, ""});
  planned[1].table_digest = std::string(64, '8');
  for (const auto& decision : AgreeAll(server->port(), planned)) {
    EXPECT_EQ(decision.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(decision.status().message(), AllOf(HasSubstr("rank tables"), HasSubstr("node 0"), HasSubstr("node 1")));
  }
}

TEST(RouteAgreementClient, AMissingNodeIsNamed) {
  std::unique_ptr<manager::ManagerServer> server = StartManager();
  absl::StatusOr<RouteDecision> decision = Agree(Options(server->port(), 2, 0, 1));
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_FALSE(decision->adopt);
  EXPECT_EQ(decision->reason, "no agreement within 1 s: node 1 is missing");
}

TEST(RouteAgreementClient, NoManager) {
  const int port = testing::FreePort();
  absl::StatusOr<RouteDecision> decision = Agree(Options(port, 2, 0, 1));
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_FALSE(decision->adopt);
  EXPECT_THAT(decision->reason, HasSubstr(absl::StrCat("the manager 127.0.0.1:", port)));
}

TEST(RouteAgreementClient, TokenAndJob) {
  std::unique_ptr<manager::ManagerServer> server = StartManager({.secret = "secret", .job = "ns/mine"});
  AgreeOptions options = Options(server->port(), 1, 0);
  options.security.secret = "wrong";
  EXPECT_EQ(Agree(options).status().code(), absl::StatusCode::kUnauthenticated);
  options.security.secret = "secret";
  options.job = "ns/other";
  EXPECT_THAT(Agree(options).status().message(), HasSubstr("ns/other is not this manager's"));
  options.job = "no name";
  EXPECT_EQ(Agree(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.job = "ns/mine";
  absl::StatusOr<RouteDecision> decision = Agree(options);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_TRUE(decision->adopt);
}

TEST(RouteAgreementClient, WrongUsageNamesFlagAndValue) {
  auto message = [](const AgreeOptions& options) {
    absl::Status status = RouteAgreement::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Options(0, 2, 0)), HasSubstr("--manager"));
  EXPECT_THAT(message(Options(1, 0, 0)), AllOf(HasSubstr("--nodes"), HasSubstr("0")));
  EXPECT_THAT(message(Options(1, 2, 2)), AllOf(HasSubstr("--index"), HasSubstr("2")));
  EXPECT_THAT(message(Options(1, 2, -1)), HasSubstr("-1"));
  EXPECT_THAT(message(Options(1, 2, 0, 0)), HasSubstr("--agree-timeout"));
}

using ServerStream = grpc::ServerReaderWriter<v1::RouteVerdict, v1::RouteVote>;

// Plays the next part of its script for each stream.
class Script final : public v1::RouteAgreement::Service {
 public:
  using Part = std::function<grpc::Status(ServerStream*, const v1::RouteProposal&)>;

  explicit Script(std::vector<Part> parts) : parts_(std::move(parts)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", proto::TestCredentials(manager::kTestSecret), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Script() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Agree(grpc::ServerContext*, ServerStream* stream) override {
    v1::RouteVote vote;
    if (!stream->Read(&vote) || !vote.has_proposal()) return {grpc::StatusCode::INTERNAL, "no proposal"};
    const size_t part = std::min(next_++, parts_.size() - 1);
    return parts_[part](stream, vote.proposal());
  }
  int port() const { return port_; }

 private:
  const std::vector<Part> parts_;
  std::atomic<size_t> next_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status Lost() { return {grpc::StatusCode::UNAVAILABLE, "the manager is ending"}; }

grpc::Status PrepareAndBreak(ServerStream* stream, const v1::RouteProposal& proposal) {
  EXPECT_EQ(proposal.in_doubt(), 0u);
  v1::RouteVerdict prepare;
  prepare.set_prepare(true);
  prepare.set_round(77);
  stream->Write(prepare);
  v1::RouteVote vote;
  EXPECT_TRUE(stream->Read(&vote));
  EXPECT_TRUE(vote.acknowledged());
  return Lost();
}

TEST(RouteAgreementClient, InDoubtItAsksAndHearsCommit) {
  std::promise<bool> written;
  Script script({PrepareAndBreak, [](ServerStream*, const v1::RouteProposal&) { return Lost(); },
                 [&](ServerStream* stream, const v1::RouteProposal& proposal) {
                   EXPECT_EQ(proposal.in_doubt(), 77u);
                   v1::RouteVerdict commit;
                   commit.set_commit(true);
                   stream->Write(commit);
                   v1::RouteVote vote;
                   written.set_value(stream->Read(&vote) && vote.written());
                   return grpc::Status::OK;
                 }});
  absl::StatusOr<RouteDecision> decision = Agree(Options(script.port(), 2, 0, 5));
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_TRUE(decision->adopt);
  EXPECT_TRUE(written.get_future().get());
}

TEST(RouteAgreementClient, InDoubtItAsksAndHearsIdentity) {
  Script script({PrepareAndBreak, [&](ServerStream* stream, const v1::RouteProposal&) {
                   v1::RouteVerdict identity;
                   identity.set_identity("node 1 has gone");
                   stream->Write(identity);
                   return grpc::Status::OK;
                 }});
  absl::StatusOr<RouteDecision> decision = Agree(Options(script.port(), 2, 0, 5));
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_FALSE(decision->adopt);
  EXPECT_EQ(decision->reason, "node 1 has gone");
}

TEST(RouteAgreementClient, InDoubtItNeverFallsBackByItself) {
  // Another manager knows nothing of the round, or there is none any more.
  Script other({PrepareAndBreak, [](ServerStream*, const v1::RouteProposal&) {
                  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "what round");
                }});
  absl::Status status = Agree(Options(other.port(), 2, 0, 5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the other nodes may have adopted it"));

  Script gone({PrepareAndBreak, [](ServerStream*, const v1::RouteProposal&) { return Lost(); }});
  status = Agree(Options(gone.port(), 2, 0, 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(RouteAgreementClient, BeforeItHasAcknowledgedItComesBack) {
  const int port = testing::FreePort();
  std::unique_ptr<manager::ManagerServer> server = StartManager({.port = port});
  absl::StatusOr<RouteDecision> first = absl::UnknownError("");
  std::thread node([&] { first = Agree(Options(port, 2, 0)); });
  server.reset();
  server = StartManager({.port = port});
  absl::StatusOr<RouteDecision> second = Agree(Options(port, 2, 1));
  node.join();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_TRUE(first->adopt) << first->reason;
  EXPECT_TRUE(second->adopt) << second->reason;
}

}  // namespace
}  // namespace taskd::route
