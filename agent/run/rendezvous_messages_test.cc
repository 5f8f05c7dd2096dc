#include "agent/run/rendezvous_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace taskd::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

process::WorkerExit Exit() {
  process::WorkerExit exit;
  exit.local_rank = 1;
  exit.rank = 9;
  exit.pid = 4711;
  exit.code = 139;
  exit.signal = 11;
  exit.time_ns = 1'700'000'000'123'456'789;
  exit.error_message = "caf\xc3\xa9 \"quoted\"\nsecond line";
  exit.last_lines = {"one", "two"};
  return exit;
}

TEST(RendezvousMessagesTest, NodeMessagesComeBack) {
  NodeInfo info{"id", "0.1", "host", 12, 3, 8, "trainer", 2, 4, 5, "only mine", 4711, ""};
  auto join = DecodeNodeMessage(Encode(NodeMessage(JoinMessage{info})));
  ASSERT_TRUE(join.ok()) << join.status();
  const NodeInfo& back = std::get<JoinMessage>(*join).info;
  EXPECT_EQ(back.run_id, "id");
  EXPECT_EQ(back.node_rank, 3);
  EXPECT_EQ(back.local_world_size, 8);
  EXPECT_EQ(back.max_restarts, 5);
  EXPECT_EQ(back.nonce, "only mine");
  EXPECT_EQ(back.tier_port, 4711);

  auto failed = DecodeNodeMessage(Encode(NodeMessage(FailedMessage{3, Exit(), "/logs/0"})));
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(std::get<FailedMessage>(*failed).exit.error_message, Exit().error_message);
  EXPECT_EQ(std::get<FailedMessage>(*failed).exit.code, 139);
  EXPECT_EQ(std::get<FailedMessage>(*failed).log_folder, "/logs/0");

  EXPECT_EQ(std::get<SucceededMessage>(*DecodeNodeMessage(Encode(NodeMessage(SucceededMessage{7})))).round, 7);
  EXPECT_EQ(std::get<StoppedMessage>(*DecodeNodeMessage(Encode(NodeMessage(StoppedMessage{8})))).round, 8);
  EXPECT_EQ(std::get<LeaveMessage>(*DecodeNodeMessage(Encode(NodeMessage(LeaveMessage{15})))).signal, 15);
  EXPECT_EQ(std::get<StacksMessage>(*DecodeNodeMessage(Encode(NodeMessage(StacksMessage{1, "t"})))).text, "t");
  EXPECT_EQ(std::get<EvidenceMessage>(*DecodeNodeMessage(Encode(NodeMessage(EvidenceMessage{1, "t"})))).text, "t");
  EXPECT_EQ(std::get<PongMessage>(*DecodeNodeMessage(Encode(NodeMessage(PongMessage{1LL << 40})))).id, 1LL << 40);
}

// So that it is refused by its version, in words.
TEST(RendezvousMessagesTest, ALauncherOfAReleaseWithoutANonceIsUnderstood) {
  const auto join = DecodeNodeMessage(
      R"({"type":"join","run_id":"id","version":"0.1","host":"h","pid":1,"node_rank":1,"local_world_size":1,"role":"",)"
      R"("min_nodes":2,"max_nodes":2,"max_restarts":0,"hosts_store":true,"tier_port":0})");
  ASSERT_TRUE(join.ok()) << join.status();
  EXPECT_EQ(std::get<JoinMessage>(*join).info.nonce, "");
}

TEST(RendezvousMessagesTest, EventsComeBack) {
  const LauncherEvent event{LauncherEvent::Kind::kExited, 2, 3, 1, 77, 137, 9, "killed", 5};
  const std::string body = Encode(NodeMessage(EventMessage{event}));
  EXPECT_EQ(
      body,
      R"({"cause":"none","code":137,"event":"exited","node":1,"pid":77,"rank":3,"reason":"killed","round":2,"signal":9,)"
      R"("time_ns":5,"type":"event"})");
  const auto message = DecodeNodeMessage(body);
  ASSERT_TRUE(message.ok()) << message.status();
  const LauncherEvent& back = std::get<EventMessage>(*message).event;
  EXPECT_EQ(back.kind, LauncherEvent::Kind::kExited);
  EXPECT_EQ(back.round, 2);
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.node, 1);
  EXPECT_EQ(back.pid, 77);
  EXPECT_EQ(back.code, 137);
  EXPECT_EQ(back.signal, 9);
  EXPECT_EQ(back.reason, "killed");
  EXPECT_EQ(back.time_ns, 5);
  using Kind = LauncherEvent::Kind;
  for (const Kind kind : {Kind::kStarted, Kind::kRestarting, Kind::kEnded}) {
    LauncherEvent of_job;
    of_job.kind = kind;
    const auto other = DecodeNodeMessage(Encode(NodeMessage(EventMessage{of_job})));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(std::get<EventMessage>(*other).event.kind, kind);
    EXPECT_EQ(std::get<EventMessage>(*other).event.rank, -1);
  }
}

TEST(RendezvousMessagesTest, RootMessagesComeBack) {
  Assignment assignment;
  assignment.round = 2;
  assignment.restart_count = 1;
  assignment.group_rank = 1;
  assignment.group_world_size = 2;
  assignment.rank_base = 4;
  assignment.world_size = 8;
  assignment.role_rank_base = 4;
  assignment.role_world_size = 8;
  assignment.manager = "a:1";
  assignment.mark_folder = "taskd-train-20261129-142301";
  assignment.tier = "b:2";
  assignment.node_timeout_ms = 15'000;
  assignment.hosts = {"h0", "h1"};
  auto start = DecodeRootMessage(Encode(RootMessage(StartMessage{assignment})));
  ASSERT_TRUE(start.ok()) << start.status();
  const Assignment& back = std::get<StartMessage>(*start).assignment;
  EXPECT_EQ(back.rank_base, 4);
  EXPECT_EQ(back.role_world_size, 8);
  EXPECT_EQ(back.manager, "a:1");
  EXPECT_EQ(back.mark_folder, assignment.mark_folder);
  EXPECT_THAT(back.hosts, ElementsAre("h0", "h1"));

  EndMessage end{139, {{Exit(), "host", 1, "/logs"}}, "why", StopCause::kTerminated};
  auto ended = DecodeRootMessage(Encode(RootMessage(end)));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(std::get<EndMessage>(*ended).failures[0].exit.rank, 9);
  EXPECT_EQ(std::get<EndMessage>(*ended).failures[0].log_folder, "/logs");
  EXPECT_EQ(std::get<EndMessage>(*ended).reason, "why");
  EXPECT_EQ(std::get<EndMessage>(*ended).cause, StopCause::kTerminated);

  for (int cause = 0; cause <= static_cast<int>(StopCause::kTimedOut); ++cause) {
    const StopMessage stop = {1, "r", static_cast<StopCause>(cause)};
    const auto stopped = std::get<StopMessage>(*DecodeRootMessage(Encode(RootMessage(stop))));
    EXPECT_EQ(std::tuple(stopped.reason, stopped.cause), std::tuple("r", stop.cause));
  }
  EXPECT_FALSE(DecodeRootMessage(R"({"type":"stop","round":1,"reason":"r","cause":"of its own"})").ok());
  EXPECT_EQ(std::get<WaitingMessage>(*DecodeRootMessage(Encode(RootMessage(WaitingMessage{"w"})))).text, "w");
  EXPECT_EQ(std::get<RefusedMessage>(*DecodeRootMessage(Encode(RootMessage(RefusedMessage{"w"})))).text, "w");
  EXPECT_EQ(std::get<CollectMessage>(*DecodeRootMessage(Encode(RootMessage(CollectMessage{4})))).id, 4);
  const auto look = std::get<LookMessage>(*DecodeRootMessage(Encode(RootMessage(LookMessage{2, 31'000, 1}))));
  EXPECT_EQ(std::tuple(look.hang, look.idle_ms, look.asks_ras), std::tuple(2, 31'000, 1));
  EXPECT_EQ(std::get<PingMessage>(*DecodeRootMessage(Encode(RootMessage(PingMessage{5})))).id, 5);
}

TEST(RendezvousMessagesTest, BytesThatAreNoText) {
  NodeInfo info{"id\xff", "0.1", "ho\x80st", 12, 3, 8, "trainer", 2, 4, 5, "only mine", 4711, ""};
  EXPECT_TRUE(DecodeNodeMessage(Encode(NodeMessage(JoinMessage{info}))).ok());
}

TEST(RendezvousMessagesTest, HostileInputIsAnError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a JSON object"},
      {"GET / HTTP/1.1", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{}", "'type'"},
      {R"({"type":7})", "'type'"},
      {R"({"type":"launch"})", "no message"},
      {R"({"type":"stopped"})", "'round'"},
      {R"({"type":"stopped","round":-1})", "'round'"},
      {R"({"type":"stopped","round":18446744073709551615})", "'round'"},
      {R"({"type":"stopped","round":1.5})", "'round'"},
      {R"({"type":"leave","signal":65})", "'signal'"},
      {R"({"type":"event","json":"{}"})", "'event'"},
      {R"({"type":"event","event":"hang"})", "'event'"},
      {R"({"type":"event","event":1})", "'event'"},
      {R"({"type":"event","event":"started"})", "'round'"},
      {R"({"type":"event","event":"started","round":0,"rank":-7})", "'rank'"},
      {R"({"type":"event","event":"started","round":0,"rank":1,"node":99999999999})", "'node'"},
      {R"({"type":"failed","round":0,"exit":{},"log_folder":""})", "'exit'"},
      {R"({"type":"failed","round":0,"exit":"nonsense","log_folder":""})", ""},
      {R"({"type":"join","run_id":"x"})", "'version'"},
      {std::string(1 << 20, '['), "not a JSON object"},
  };
  for (const auto& [body, words] : cases) {
    auto message = DecodeNodeMessage(body);
    ASSERT_FALSE(message.ok()) << body.substr(0, 80);
    EXPECT_THAT(std::string(message.status().message()), HasSubstr(words));
  }
  EXPECT_FALSE(DecodeRootMessage(R"({"type":"end","exit_code":0,"reason":"","cause":"none","failures":[3]})").ok());
  EXPECT_FALSE(DecodeRootMessage(R"({"type":"end","exit_code":256,"reason":"","cause":"none","failures":[]})").ok());
  EXPECT_FALSE(DecodeRootMessage(R"({"type":"join"})").ok());
}

TEST(RendezvousMessagesTest, ChangedBytesNeverCrash) {
  std::mt19937 random(1);
  NodeInfo info{"id", "0.1", "host", 12, 3, 8, "trainer", 2, 4, 5, "only mine", 4711, ""};
  const std::vector<std::string> bodies = {Encode(NodeMessage(JoinMessage{info})),
                                           Encode(NodeMessage(FailedMessage{3, Exit(), "/logs/0"})),
                                           Encode(RootMessage(EndMessage{139, {{Exit(), "host", 1, "/logs"}}, "why"}))};
  int decoded = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string body = bodies[random() % bodies.size()];
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      body[random() % body.size()] = static_cast<char>(random());
    }
    decoded += DecodeNodeMessage(body).ok() + DecodeRootMessage(body).ok();
  }
  EXPECT_GT(decoded, 0);
}

}  // namespace
}  // namespace taskd::run
