// A hang from the manager's notice to its stacks and the action, with a launcher made of callbacks.
#include "agent/run/supervision.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "agent/stacks/stack_merge.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/server.h"
#include "manager/test_client.h"
#include "taskd/v1/control.grpc.pb.h"

namespace taskd::run {
namespace {

using manager::PollFor;
using ::testing::HasSubstr;

class RunSupervisionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rank_ = fork();
    if (rank_ == 0) {
      while (true) pause();
    }
    char folder[] = "/tmp/taskd-run-supervision-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    manager_ = manager::StartManager();
    ASSERT_NE(manager_, nullptr);
    channel_ = manager::Dial(manager_->port());
    control_ = v1::Control::NewStub(channel_);
    grpc::ClientContext context;
    v1::SetSwitchRequest request;
    request.set_step(true);
    request.set_timeout_ms(1);
    v1::SetSwitchReply reply;
    ASSERT_TRUE(control_->SetSwitch(&context, request, &reply).ok());
  }
  void TearDown() override {
    kill(rank_, SIGKILL);
    waitpid(rank_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<SupervisionClient> Client(RunSupervision& supervision) {
    SupervisionClient::Options options;
    options.manager = absl::StrCat("127.0.0.1:", manager_->port());
    options.security.secret = manager::kTestSecret;
    options.hang_floor_s = 3;
    options.hang_factor = 1;
    auto client = SupervisionClient::Start(
        options, [&supervision](const v1::HangNotice& notice) { supervision.OnNotice(notice); });
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  v1::SupervisionStatus Ask() {
    grpc::ClientContext context;
    v1::JobStatus status;
    control_->GetStatus(&context, {}, &status);
    return status.supervision();
  }

  // Rank 9 reports that it has ended this step.
  void Report(manager::TestProxy& proxy, int64_t step) const {
    v1::NodeMessage message;
    v1::RankStatus* status = message.mutable_ranks()->add_ranks();
    status->set_rank(9);
    status->set_pid(rank_);
    status->set_attached(true);
    status->set_step(step);
    status->set_step_ms(10);
    status->mutable_marks()->set_step(static_cast<uint64_t>(step));
    proxy.Write(message);
  }
  // Long enough for a manager that looks once a second.
  void ReportSteps(manager::TestProxy& proxy, std::atomic<int64_t>& step) const {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(PollFor([&] {
      Report(proxy, ++step);
      return std::chrono::steady_clock::now() - begin > kSteps;
    }));
  }

  static constexpr std::chrono::seconds kSteps{5};

  pid_t rank_ = 0;
  std::string folder_;
  std::unique_ptr<manager::ManagerServer> manager_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> control_;
};

TEST_F(RunSupervisionTest, HangBringsStacksThenTheAction) {
  RunSupervision::Options options;
  options.hang_action = "restart";
  options.file_folder = folder_;
  RunSupervision supervision(options);
  std::atomic<int> restarts{0};
  std::atomic<bool> stacks_first{false};
  LauncherControl control;
  control.collect_stacks = [&](int id) {
    supervision.OnStacks(id, "not JSON");  // of a node that is broken
    supervision.OnStacks(id, supervision.Collect({{1, rank_}}));
  };
  control.look = [&](const LookMessage& message) {
    EXPECT_GE(message.idle_ms, 3000);
    supervision.OnEvidence(message.hang, "not JSON");
    supervision.OnEvidence(message.hang, supervision.Look(message, {{1, rank_}}));
    evidence::NodeEvidence said;
    said.ras = evidence::RasEvidence{.has_answered = true, .hang = diagnosis::Hang(), .notes = {}};
    said.ras->hang->origins = {8};
    said.ras->hang->text = "rank 8 never came";
    supervision.OnEvidence(message.hang, evidence::EncodeEvidence(said));
  };
  control.restart = [&](const std::string&) {
    stacks_first = !std::filesystem::is_empty(folder_);
    ++restarts;
  };
  supervision.SetControl(control);

  supervision.OnEvent(LauncherEvent{});  // before there is a client
  Assignment assignment;
  assignment.group_rank = 0;
  assignment.group_world_size = 2;
  assignment.rank_base = 8;
  supervision.SetAssignment(assignment);
  supervision.SetClient(Client(supervision));
  EXPECT_TRUE(std::filesystem::is_directory(supervision.stack_folder()));
  ASSERT_TRUE(PollFor([&] { return Ask().state() == v1::SupervisionStatus::RUNNING; }));

  manager::TestProxy proxy(channel_, 0, {9});
  std::atomic<int64_t> step{17};
  ReportSteps(proxy, step);
  // More than one if the machine held this process up for the hang's floor before.
  ASSERT_TRUE(PollFor([&] { return restarts >= 1; }));
  EXPECT_TRUE(stacks_first);
  const auto message_of = [this](v1::SupervisionEvent::Kind kind) {
    std::string message;
    const v1::SupervisionStatus status = Ask();
    for (const v1::SupervisionEvent& event : status.events()) {
      if (event.kind() == kind) message = event.message();
    }
    return message;
  };
  ASSERT_TRUE(PollFor([&] { return !message_of(v1::SupervisionEvent::STACKS).empty(); }));
  EXPECT_TRUE(PollFor([&] { return Ask().state() == v1::SupervisionStatus::HUNG; }));
  EXPECT_THAT(message_of(v1::SupervisionEvent::STACKS), HasSubstr("stacks of 1 rank in 1 group"));
  EXPECT_THAT(message_of(v1::SupervisionEvent::STACKS), HasSubstr("rank 9"));
  ASSERT_TRUE(PollFor([&] { return message_of(v1::SupervisionEvent::EVIDENCE) == "rank 8 never came"; }));
  std::ifstream file(std::filesystem::directory_iterator(folder_)->path());
  std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("hang: no rank has ended a step"));
  EXPECT_THAT(text, HasSubstr("rank 9"));
}

// The first hang ends while stacks are gathered; the second one stays.
TEST_F(RunSupervisionTest, NobodyIsEndedForAHangThatIsOver) {
  RunSupervision::Options options;
  options.hang_action = "restart";
  options.file_folder = folder_;
  options.ras = false;
  RunSupervision supervision(options);
  std::atomic<int64_t> step{17};
  std::unique_ptr<manager::TestProxy> proxy;
  std::atomic<int> hangs{0}, restarts{0}, restarts_at_second{-1};
  LauncherControl control;
  control.collect_stacks = [&](int id) {
    if (++hangs == 1) {
      Report(*proxy, ++step);
      EXPECT_TRUE(PollFor([&] { return Ask().state() == v1::SupervisionStatus::RUNNING; }));
    } else if (restarts_at_second < 0) {
      restarts_at_second = restarts.load();
    }
    supervision.OnStacks(id, supervision.Collect({{1, rank_}}));
  };
  control.restart = [&](const std::string&) { ++restarts; };
  supervision.SetControl(control);
  Assignment assignment;
  assignment.group_world_size = 1;
  assignment.rank_base = 8;
  supervision.SetAssignment(assignment);
  supervision.SetClient(Client(supervision));
  supervision.OnEvent(LauncherEvent{});
  ASSERT_TRUE(PollFor([&] { return Ask().state() == v1::SupervisionStatus::RUNNING; }));
  proxy = std::make_unique<manager::TestProxy>(channel_, 0, std::vector<int>{9});
  ReportSteps(*proxy, step);
  ASSERT_TRUE(PollFor([&] { return restarts >= 1; }));
  EXPECT_GE(hangs, 2);
  EXPECT_EQ(restarts_at_second, 0);
}

TEST_F(RunSupervisionTest, CollectsWithoutAClient) {
  std::string folder;
  {
    RunSupervision supervision({});
    folder = supervision.stack_folder();
    Assignment assignment;
    assignment.group_rank = 1;
    assignment.group_world_size = 2;
    assignment.rank_base = 8;
    supervision.SetAssignment(assignment);
    supervision.OnEvent(LauncherEvent{});
    supervision.OnStacks(7, "nobody asked");
    absl::StatusOr<std::vector<stacks::RankStacks>> stacks = stacks::DecodeStacks(supervision.Collect({{0, rank_}}));
    ASSERT_TRUE(stacks.ok());
    EXPECT_EQ((*stacks)[0].rank, 8);
    EXPECT_EQ((*stacks)[0].node, 1);
    EXPECT_EQ((*stacks)[0].pid, rank_);
  }
  EXPECT_EQ(Ask().events_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace taskd::run
