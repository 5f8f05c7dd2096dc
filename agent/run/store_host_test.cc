// Root and clients over real sockets, in one process.
#include "agent/run/store_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include "agent/run/rendezvous_client.h"
#include "common/listen.h"
#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

using ::taskd::testing::FreePort;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kS = 1'000'000'000;
constexpr int64_t kHangLimitNs = std::chrono::nanoseconds(taskd::testing::kHangLimit).count();

constexpr char kNonce[] = "of the store's launcher";

NodeInfo Info(int node_rank) {
  NodeInfo info;
  info.run_id = "job";
  info.version = "1";
  info.host = fmt::format("host{}", node_rank);
  info.node_rank = node_rank;
  info.local_world_size = 1;
  info.role = "default";
  info.min_nodes = info.max_nodes = 2;
  if (node_rank == 0) info.nonce = kNonce;
  return info;
}

Rendezvous::Options TwoNodes(int max_restarts = 0) {
  Rendezvous::Options options;
  options.run_id = "job";
  options.version = "1";
  options.secret = "of the job";
  options.nonce = kNonce;
  options.min_nodes = options.max_nodes = 2;
  options.max_restarts = max_restarts;
  return options;
}

class Node {
 public:
  Node(EventLoop* loop, int port, const NodeInfo& info, int64_t timeout_ns = kHangLimitNs,
       const std::string& secret = "", int ports = 1)
      : client_(loop, {"127.0.0.1", port}, info, secret, timeout_ns, kHangLimitNs,
                {[this](RootMessage message) { received_.push_back(std::move(message)); },
                 [this](const std::string& why) { failed_ = why; }},
                ports) {
    client_.Start();
  }

  template <typename Message>
  std::optional<Message> Received() const {
    for (auto message = received_.rbegin(); message != received_.rend(); ++message) {
      if (const auto* found = std::get_if<Message>(&*message)) return *found;
    }
    return std::nullopt;
  }
  RendezvousClient& client() { return client_; }
  const std::string& failed() const { return failed_; }

 private:
  std::vector<RootMessage> received_;
  std::string failed_;
  RendezvousClient client_;
};

// Speaks as a launcher, and never joins.
UniqueFd Stranger(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string begins = std::string(1, '\0') + "TKL1";
  EXPECT_EQ(send(fd.get(), begins.data(), begins.size(), MSG_NOSIGNAL), 5);
  return fd;
}

class RootTest : public ::testing::Test {
 protected:
  // Turns the clients' loop until `condition` holds.
  void RunUntil(const std::function<bool()>& condition) {
    const taskd::testing::Deadline deadline;
    std::function<void()> look = [&] {
      const bool is_over = deadline.IsOver();  // before the last look: it may have taken long to get to it
      if (condition() || is_over) {
        loop_.Stop();
      } else {
        loop_.RunAfter(1'000'000, look);
      }
    };
    loop_.Post(look);
    loop_.Run();
    ASSERT_TRUE(condition());
  }

  void StartRoot(Rendezvous::Options options = TwoNodes(), bool peers_prove = false, int port = 0) {
    root_.emplace();
    const absl::Status listening = root_->ListenRoot({"127.0.0.1", port}, true);
    ASSERT_TRUE(listening.ok()) << listening;
    StoreHost::Callbacks callbacks;
    callbacks.on_event = [this](const LauncherEvent& event) {
      std::lock_guard lock(mutex_);
      events_.push_back(event);
    };
    callbacks.on_stacks = [this](int id, const std::string& text) {
      std::lock_guard lock(mutex_);
      stacks_.push_back(fmt::format("{} {}", id, text));
    };
    callbacks.on_evidence = [this](int hang, const std::string& text) {
      std::lock_guard lock(mutex_);
      evidence_.push_back(fmt::format("{} {}", hang, text));
    };
    root_->ServeRoot(std::move(options), callbacks, peers_prove);
  }
  std::vector<LauncherEvent> Events() {
    std::lock_guard lock(mutex_);
    return events_;
  }
  std::vector<std::string> Stacks() {
    std::lock_guard lock(mutex_);
    return stacks_;
  }
  std::vector<std::string> Evidence() {
    std::lock_guard lock(mutex_);
    return evidence_;
  }

  EventLoop loop_;
  std::mutex mutex_;
  std::vector<LauncherEvent> events_;  // guarded by mutex_
  std::vector<std::string> stacks_;    // guarded by mutex_
  std::vector<std::string> evidence_;  // guarded by mutex_
  std::optional<StoreHost> root_;
};

TEST_F(RootTest, OfSeveralPortsTheJobsOwnIsFound) {
  // One port with another job's root, one with somebody who closes, one where nobody is, then the job's own.
  const int port = FreePort(4);
  StoreHost other;
  ASSERT_TRUE(other.ListenRoot({"127.0.0.1", port}, true).ok());
  absl::StatusOr<UniqueFd> closes = ListenTcp({"127.0.0.1", port + 1}, true);
  ASSERT_TRUE(closes.ok()) << closes.status();
  root_.emplace();
  ASSERT_TRUE(root_->ListenRoot({"127.0.0.1", port + 3}, true).ok());
  Rendezvous::Options of_other = TwoNodes();
  of_other.run_id = "another";
  other.ServeRoot(of_other, {});
  loop_.Add(closes->get(), EPOLLIN, [&](uint32_t) { close(accept(closes->get(), nullptr, nullptr)); });

  Node first(&loop_, port + 3, Info(0));
  Node second(&loop_, port, Info(1), kHangLimitNs, "", 4);
  RunUntil([&] { return second.client().last_error() != ""; });  // it has tried all of them once
  root_->ServeRoot(TwoNodes(), {});
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });
  EXPECT_EQ(second.client().port(), port + 3);
  EXPECT_EQ(second.failed(), "");
  loop_.Remove(closes->get());
}

TEST_F(RootTest, OfSeveralPortsNoneIsTheJobs) {
  Rendezvous::Options another = TwoNodes();
  another.run_id = "another";
  const int port = FreePort(2);  // the next port stays free
  StartRoot(another, false, port);
  Node node(&loop_, port, Info(1), kHangLimitNs, "", 2);
  RunUntil([&] { return node.client().last_error().find("another job's launcher") != std::string::npos; });
  EXPECT_FALSE(node.Received<RefusedMessage>()) << "the job's own may yet come";
}

TEST_F(RootTest, WhoJoinsIsGivenTheSecret) {
  StartRoot();
  Node first(&loop_, root_->root_port(), Info(0));
  Node second(&loop_, root_->root_port(), Info(1), kHangLimitNs, "of the job");  // it asks for proof of it
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });
  EXPECT_EQ(first.Received<StartMessage>()->assignment.secret, "of the job");
}

TEST_F(RootTest, AnotherSecretIsRefusedOnBothSides) {
  StartRoot(TwoNodes(), /*peers_prove=*/true);
  for (const std::string secret : {"", "another"}) {
    Node stranger(&loop_, root_->root_port(), Info(1), kHangLimitNs, secret);
    RunUntil([&] { return !stranger.failed().empty(); });
    EXPECT_THAT(stranger.failed(), HasSubstr("TASKD_TOKEN"));
    EXPECT_FALSE(stranger.Received<WaitingMessage>());
  }
  Node first(&loop_, root_->root_port(), Info(0), kHangLimitNs, "of the job");
  Node second(&loop_, root_->root_port(), Info(1), kHangLimitNs, "of the job");
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });
}

TEST_F(RootTest, RootWithoutTheSecretIsNotJoined) {
  StartRoot();
  Node node(&loop_, root_->root_port(), Info(1), kHangLimitNs, "given to this node only");
  RunUntil([&] { return !node.failed().empty(); });
  EXPECT_THAT(node.failed(), HasSubstr("TASKD_TOKEN"));
}

TEST_F(RootTest, ANodeAnswersOnceWhatItWasAsked) {
  StartRoot();
  Node first(&loop_, root_->root_port(), Info(0));
  Node second(&loop_, root_->root_port(), Info(1));
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });
  second.client().Send(StacksMessage{5, "nobody asked"});
  second.client().Send(EventMessage{});
  RunUntil([&] { return Events().size() == 1; });
  root_->CollectStacks(5);
  RunUntil([&] { return second.Received<CollectMessage>().has_value(); });
  second.client().Send(StacksMessage{6, "nobody asked"});
  for (int i = 0; i < 3; ++i) second.client().Send(StacksMessage{5, "main"});
  second.client().Send(EventMessage{});
  RunUntil([&] { return Events().size() == 2; });
  EXPECT_THAT(Stacks(), ElementsAre("5 main"));
}

TEST_F(RootTest, ANodeAnswersEachLookOnce) {
  StartRoot();
  Node first(&loop_, root_->root_port(), Info(0));
  Node second(&loop_, root_->root_port(), Info(1));
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });
  second.client().Send(EvidenceMessage{1, "nobody asked"});
  second.client().Send(EventMessage{});
  RunUntil([&] { return Events().size() == 1; });
  root_->CollectStacks(5);
  for (int64_t idle_ms : {31'000, 32'000}) root_->Look({.hang = 1, .idle_ms = idle_ms, .asks_ras = 0});
  RunUntil([&] {
    const std::optional<LookMessage> look = second.Received<LookMessage>();
    return look && look->idle_ms == 32'000;
  });
  for (int i = 0; i < 4; ++i) second.client().Send(EvidenceMessage{1, fmt::format("found {}", i)});
  second.client().Send(StacksMessage{5, "main"});
  RunUntil([&] { return Stacks().size() == 1; });
  EXPECT_THAT(Evidence(), ElementsAre("1 found 0", "1 found 1"));
}

TEST_F(RootTest, TwoNodesRunRestartAndEnd) {
  StartRoot(TwoNodes(1));
  Node first(&loop_, root_->root_port(), Info(0));
  RunUntil([&] { return first.Received<WaitingMessage>().has_value(); });
  EXPECT_THAT(first.Received<WaitingMessage>()->text, HasSubstr("missing node rank 1"));
  Node second(&loop_, root_->root_port(), Info(1));
  RunUntil([&] { return first.Received<StartMessage>() && second.Received<StartMessage>(); });

  LauncherEvent started;
  started.rank = 3;
  first.client().Send(EventMessage{started});
  RunUntil([&] { return Events().size() == 1; });
  root_->CollectStacks(5);
  RunUntil([&] { return second.Received<CollectMessage>().has_value(); });
  second.client().Send(StacksMessage{5, "main\nloop"});
  RunUntil([&] { return Stacks().size() == 1; });
  EXPECT_THAT(Stacks(), ElementsAre("5 main\nloop"));

  process::WorkerExit exit;
  exit.rank = 1;
  exit.code = 7;
  second.client().Send(FailedMessage{0, exit, ""});
  RunUntil([&] { return first.Received<StopMessage>() && second.Received<StopMessage>(); });
  first.client().Send(StoppedMessage{0});
  second.client().Send(StoppedMessage{0});
  RunUntil([&] { return second.Received<StartMessage>()->assignment.round == 1; });
  RunUntil([&] { return first.Received<StartMessage>()->assignment.restart_count == 1; });

  first.client().Send(SucceededMessage{1});
  second.client().Send(SucceededMessage{1});
  RunUntil([&] { return first.Received<EndMessage>() && second.Received<EndMessage>(); });
  EXPECT_EQ(first.Received<EndMessage>()->exit_code, 0);
  EXPECT_EQ(Events()[0].kind, LauncherEvent::Kind::kStarted);
  EXPECT_EQ(Events()[0].rank, 3);
  EXPECT_EQ(Events()[0].world_size, first.Received<StartMessage>()->assignment.world_size);
  EXPECT_EQ(Events()[1].kind, LauncherEvent::Kind::kRestarting);
  EXPECT_THAT(Events()[1].reason, HasSubstr("rank 1"));
  EXPECT_EQ(Events()[2].kind, LauncherEvent::Kind::kEnded);
  EXPECT_EQ(Events()[2].round, 1);

  bool alone = false;
  root_->WhenAlone([&] { loop_.Post([&] { alone = true; }); });
  first.client().Close();
  EXPECT_FALSE(alone);
  second.client().Close();
  RunUntil([&] { return alone; });
}

TEST_F(RootTest, ANodeMayComeBeforeTheRoot) {
  const int port = FreePort();
  Node second(&loop_, port, Info(1));
  RunUntil([&] { return !second.client().last_error().empty(); });
  EXPECT_THAT(second.client().last_error(), HasSubstr("refused"));

  root_.emplace();
  const absl::Status listening = root_->ListenRoot({"127.0.0.1", port}, true);
  ASSERT_TRUE(listening.ok()) << listening;
  root_->ServeRoot(TwoNodes(), {});
  Node first(&loop_, port, Info(0));
  RunUntil([&] { return second.Received<StartMessage>().has_value(); });

  root_.reset();
  RunUntil([&] { return !second.failed().empty(); });
  EXPECT_THAT(second.failed(), HasSubstr(fmt::format("node 0's launcher at 127.0.0.1:{} is gone", port)));
}

TEST_F(RootTest, LostBeforeTheStartIsLookedForAgain) {
  const int port = FreePort();
  StartRoot(TwoNodes(), false, port);
  Node second(&loop_, port, Info(1));
  RunUntil([&] { return second.Received<WaitingMessage>().has_value(); });
  root_.reset();
  RunUntil([&] { return !second.client().connected(); });
  StartRoot(TwoNodes(), false, port);
  Node first(&loop_, port, Info(0));
  RunUntil([&] { return second.Received<StartMessage>().has_value(); });
}

TEST_F(RootTest, NobodyThere) {
  const int port = FreePort();
  Node second(&loop_, port, Info(1), kS / 5);
  RunUntil([&] { return !second.failed().empty(); });
  EXPECT_THAT(second.failed(), HasSubstr(fmt::format("127.0.0.1:{} within 0.2 s: Connection refused", port)));
}

TEST_F(RootTest, SomebodyElseThere) {
  absl::StatusOr<UniqueFd> server = ListenTcp({"127.0.0.1", 0}, false);
  const int port = LocalPort(server->get());
  UniqueFd connection;
  loop_.Add(server->get(), EPOLLIN, [&](uint32_t) {
    connection.reset(accept(server->get(), nullptr, nullptr));
    const char text[] = "SSH-2.0-OpenSSH_9.2\r\n";
    send(connection.get(), text, std::strlen(text), MSG_NOSIGNAL);
  });
  Node second(&loop_, port, Info(1));
  RunUntil([&] { return !second.failed().empty(); });
  EXPECT_THAT(second.failed(), HasSubstr("is no taskd launcher: it says 'SSH-2.0-OpenSSH_9.2'"));
  loop_.Remove(server->get());
}

TEST_F(RootTest, AtTheEndOnlyThoseWhoHaveJoinedAreWaitedFor) {
  StartRoot();
  std::optional<Node> node(std::in_place, &loop_, root_->root_port(), Info(0));
  RunUntil([&] { return node->Received<WaitingMessage>().has_value(); });
  std::atomic<bool> alone = false;
  root_->WhenAlone([&] { alone = true; });
  node.reset();
  // There is always one that speaks as a launcher, and has not joined.
  std::vector<UniqueFd> strangers;
  RunUntil([&, looks = 0]() mutable {
    if (looks++ % 50 == 0) strangers.push_back(Stranger(root_->root_port()));
    return alone.load();
  });
}

TEST_F(RootTest, ATierIsServedOnAFreePort) {
  StartRoot();
  absl::StatusOr<int> port = root_->ServeTier(false);
  root_->SetUpstream({"127.0.0.1", root_->root_port()}, 60'000);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_NE(*port, root_->root_port());
}

TEST_F(RootTest, GarbageClosesOnlyItsConnection) {
  StartRoot();
  Node first(&loop_, root_->root_port(), Info(0));
  RunUntil([&] { return first.Received<WaitingMessage>().has_value(); });
  NodeInfo wrong = Info(1);
  wrong.local_world_size = 0;  // out of range
  Node second(&loop_, root_->root_port(), wrong);
  bool stayed = true;  // the first one would come back by itself, after a pause in which this looks
  const auto looks = [&] { return stayed = stayed && first.client().connected(); };
  RunUntil([&] { return looks(), !second.client().last_error().empty(); });
  Node third(&loop_, root_->root_port(), Info(1));
  RunUntil([&] { return looks(), first.Received<StartMessage>().has_value(); });
  EXPECT_TRUE(stayed) << "the root has closed the first node's connection";
}

}  // namespace
}  // namespace taskd::run
