// Against a real manager in this process.
#include "agent/run/supervision_client.h"

#include <atomic>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/server.h"
#include "manager/test_client.h"
#include "taskd/v1/control.grpc.pb.h"

namespace taskd::run {
namespace {

using manager::PollFor;
using manager::StartManager;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Address(int port) { return absl::StrCat("127.0.0.1:", port); }

SupervisionClient::Options To(int port, const std::string& secret = manager::kTestSecret) {
  SupervisionClient::Options options;
  options.manager = Address(port);
  options.security.secret = secret;
  return options;
}

v1::SupervisionStatus Ask(int port) {
  std::unique_ptr<v1::Control::Stub> stub = v1::Control::NewStub(manager::Dial(port));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
  v1::JobStatus status;
  stub->GetStatus(&context, {}, &status);
  return status.supervision();
}

v1::SupervisionEvent Exited(int rank) {
  v1::SupervisionEvent event;
  event.set_kind(v1::SupervisionEvent::EXITED);
  event.set_rank(rank);
  event.set_node(-1);
  return event;
}

TEST(SupervisionClientTest, EventsArriveInOrder) {
  auto manager = StartManager();
  auto client = SupervisionClient::Start(To(manager->port()), nullptr);
  ASSERT_TRUE(client.ok()) << client.status();
  for (int rank = 0; rank < 150; ++rank) (*client)->Report(Exited(rank));
  client->reset();  // sends what is queued
  v1::SupervisionStatus status = Ask(manager->port());
  ASSERT_EQ(status.events_size(), 150);
  for (int rank = 0; rank < 150; ++rank) ASSERT_EQ(status.events(rank).rank(), rank);
  EXPECT_EQ(status.rank_exits(), 150u);
}

TEST(SupervisionClientTest, ManagerMayComeLater) {
  const int port = testing::FreePort();
  auto client = SupervisionClient::Start(To(port), nullptr);
  ASSERT_TRUE(client.ok());
  (*client)->Report(Exited(5));
  auto manager = StartManager({.port = port});
  EXPECT_TRUE(PollFor([&] { return Ask(port).events_size() == 1; }));
  manager.reset();
  (*client)->Report(Exited(6));
  manager = StartManager({.port = port});
  EXPECT_TRUE(PollFor([&] { return Ask(port).events_size() == 1 && Ask(port).events(0).rank() == 6; }));
}

TEST(SupervisionClientTest, WhomTheRendezvousWaitsForIsTheNewest) {
  const int port = testing::FreePort();
  auto manager = StartManager({.port = port});
  auto client = SupervisionClient::Start(To(port), nullptr);
  ASSERT_TRUE(client.ok());
  (*client)->SetWaitsFor("nodes 1-2 (1 of 3 here)");
  (*client)->SetWaitsFor("node 2 (2 of 3 here)");
  EXPECT_TRUE(PollFor([&] { return Ask(port).waits_for() == "node 2 (2 of 3 here)"; }));
  EXPECT_GE(Ask(port).waits_s(), 0);
  EXPECT_EQ(Ask(port).events_size(), 0) << "nothing has happened yet";
  (*client)->SetWaitsFor("");
  EXPECT_TRUE(PollFor([&] { return Ask(port).waits_for().empty(); }));
  // A manager that comes back is told.
  manager.reset();
  (*client)->SetWaitsFor("node 1 (2 of 3 here)");
  manager = StartManager({.port = port});
  EXPECT_TRUE(PollFor([&] { return Ask(port).waits_for() == "node 1 (2 of 3 here)"; }));
}

TEST(SupervisionClientTest, EndsSoonWithoutAManager) {
  auto client = SupervisionClient::Start(To(1), nullptr);
  ASSERT_TRUE(client.ok());
  for (int rank = 0; rank < 40000; ++rank) (*client)->Report(Exited(rank));
  client->reset();
}

TEST(SupervisionClientTest, WrongAddressIsReported) {
  SupervisionClient::Options options;
  options.manager = "nowhere";
  auto client = SupervisionClient::Start(options, nullptr);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SupervisionClientTest, NeedsTheSecret) {
  auto manager = StartManager();
  {
    auto client = SupervisionClient::Start(To(manager->port(), "another"), nullptr);
    (*client)->Report(Exited(1));
  }
  EXPECT_EQ(Ask(manager->port()).events_size(), 0);
  {
    auto client = SupervisionClient::Start(To(manager->port()), nullptr);
    (*client)->Report(Exited(1));
  }
  EXPECT_EQ(Ask(manager->port()).events_size(), 1);
}

TEST(SupervisionClientTest, HangIsReported) {
  auto manager = StartManager();
  std::shared_ptr<grpc::Channel> channel = manager::Dial(manager->port());
  {
    std::unique_ptr<v1::Control::Stub> control = v1::Control::NewStub(channel);
    grpc::ClientContext context;
    v1::SetSwitchRequest request;
    request.set_step(true);
    request.set_timeout_ms(1);
    v1::SetSwitchReply reply;
    ASSERT_TRUE(control->SetSwitch(&context, request, &reply).ok());
  }
  std::mutex mutex;
  std::vector<v1::HangNotice> notices;
  SupervisionClient::Options options = To(manager->port());
  options.hang_factor = 1;
  options.hang_floor_s = 3;
  auto client = SupervisionClient::Start(options, [&](const v1::HangNotice& notice) {
    std::lock_guard lock(mutex);
    notices.push_back(notice);
  });
  ASSERT_TRUE(client.ok());
  auto newest = [&]() -> std::optional<v1::HangNotice> {
    std::lock_guard lock(mutex);
    if (notices.empty()) return std::nullopt;
    return notices.back();
  };
  manager::TestProxy proxy(channel, 0, {0, 1});
  int64_t step = 17;
  auto report = [&](int64_t steps) {
    step += steps;
    v1::NodeMessage message;
    for (int rank = 0; rank < 2; ++rank) {
      v1::RankStatus* status = message.mutable_ranks()->add_ranks();
      status->set_rank(rank);
      status->set_pid(1000 + rank);
      status->set_attached(true);
      status->set_step(step - rank);
      status->set_step_ms(10);
      status->mutable_marks()->set_step(static_cast<uint64_t>(step));
    }
    proxy.Write(message);
  };
  // Steps until the manager has seen some: it looks once a second.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(PollFor([&] {
    report(1);
    return std::chrono::steady_clock::now() - begin > std::chrono::seconds(5);
  }));
  // A machine that held this process up for the hang's floor has made a hang of its own, which is over.
  ASSERT_TRUE(PollFor([&] { return !newest() || !newest()->hung(); }));
  ASSERT_TRUE(PollFor([&] { return newest() && newest()->hung(); }));
  const v1::HangNotice hung = *newest();
  EXPECT_THAT(hung.behind(), ElementsAre(1));
  EXPECT_THAT(hung.text(), HasSubstr("behind"));
  EXPECT_EQ(Ask(manager->port()).state(), v1::SupervisionStatus::HUNG);
  EXPECT_EQ(Ask(manager->port()).hung_ranks(), 2u);
  report(1);
  ASSERT_TRUE(PollFor([&] { return !newest()->hung(); }));
  EXPECT_EQ(newest()->number(), hung.number());
}

TEST(ToSupervisionEventTest, Fields) {
  const v1::SupervisionEvent event =
      ToSupervisionEvent({LauncherEvent::Kind::kExited, 2, 3, 1, 77, 137, 9, "killed", 5, 64});
  EXPECT_EQ(event.kind(), v1::SupervisionEvent::EXITED);
  EXPECT_EQ(event.round(), 2);
  EXPECT_EQ(event.rank(), 3);
  EXPECT_EQ(event.node(), 1);
  EXPECT_EQ(event.world_size(), 64);
  EXPECT_EQ(event.pid(), 77);
  EXPECT_EQ(event.code(), 137);
  EXPECT_EQ(event.signal(), 9);
  EXPECT_EQ(event.message(), "killed");
  EXPECT_EQ(event.time_ns(), 5);
}

TEST(ToSupervisionEventTest, Kinds) {
  LauncherEvent event;
  EXPECT_EQ(ToSupervisionEvent(event).kind(), v1::SupervisionEvent::STARTED);
  event.kind = LauncherEvent::Kind::kRestarting;
  EXPECT_EQ(ToSupervisionEvent(event).kind(), v1::SupervisionEvent::RESTARTING);
  event.kind = LauncherEvent::Kind::kEnded;
  EXPECT_EQ(ToSupervisionEvent(event).kind(), v1::SupervisionEvent::ENDED);
  EXPECT_EQ(ToSupervisionEvent(event).cause(), v1::SupervisionEvent::CAUSE_UNKNOWN);
  event.cause = StopCause::kTimedOut;
  EXPECT_EQ(ToSupervisionEvent(event).cause(), v1::SupervisionEvent::TIMED_OUT);
  // About the job.
  EXPECT_EQ(ToSupervisionEvent(event).rank(), -1);
  EXPECT_EQ(ToSupervisionEvent(event).node(), -1);
}

}  // namespace
}  // namespace taskd::run
