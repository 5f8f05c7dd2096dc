#include "agent/run/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"

namespace taskd::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1000 * kMs;

Rendezvous::Options Static(int nodes, int max_restarts = 0) {
  Rendezvous::Options options;
  options.run_id = "job";
  options.version = "1";
  options.nonce = "of the store's launcher";
  options.min_nodes = options.max_nodes = nodes;
  options.max_restarts = max_restarts;
  options.join_timeout_ns = 60 * kS;
  if (nodes == 1) options.settle_ns = 0;
  return options;
}

Rendezvous::Options Elastic(int min_nodes, int max_nodes, int max_restarts = 0) {
  Rendezvous::Options options = Static(min_nodes, max_restarts);
  options.max_nodes = max_nodes;
  options.fixed_ranks = false;
  options.last_call_ns = 5 * kS;
  options.settle_ns = 300 * kMs;
  options.silence_ns = 15 * kS;
  return options;
}

// Nodes that answer pings, unless muted, and keep what they receive.
class Job {
 public:
  explicit Job(const Rendezvous::Options& options) : options_(options), rendezvous_(options, 0) {}

  NodeInfo Info(int node_rank) const {
    NodeInfo info;
    info.run_id = options_.run_id;
    info.version = options_.version;
    info.host = fmt::format("host{}", node_rank);
    info.pid = 100 + node_rank;
    info.node_rank = options_.fixed_ranks ? node_rank : -1;
    info.local_world_size = 2;
    info.role = "default";
    info.min_nodes = options_.min_nodes;
    info.max_nodes = options_.max_nodes;
    if (node_rank == 0) info.nonce = options_.nonce;
    return info;
  }

  void Join(uint64_t peer, const NodeInfo& info, bool is_known = true) {
    Take(rendezvous_.Opened(peer, now_, is_known));
    Send(peer, JoinMessage{info});
  }
  void Join(uint64_t peer, int node_rank) { Join(peer, Info(node_rank)); }
  void Send(uint64_t peer, const NodeMessage& message) { Take(rendezvous_.Received(peer, message, now_)); }
  void Fail(uint64_t peer, int rank, int code, int signal = 0) {
    process::WorkerExit exit;
    exit.rank = rank;
    exit.code = code;
    exit.signal = signal;
    Send(peer, FailedMessage{rendezvous_.round(), exit, ""});
  }
  void Succeed(uint64_t peer) { Send(peer, SucceededMessage{rendezvous_.round()}); }
  void Stopped(uint64_t peer) { Send(peer, StoppedMessage{rendezvous_.round()}); }
  void Lose(uint64_t peer) { Take(rendezvous_.Lost(peer, now_)); }
  void SetManager(const std::string& manager) { Take(rendezvous_.SetManager(manager, now_)); }
  void Restart(const std::string& reason) { Take(rendezvous_.Restart(reason, now_)); }
  void Pass(int64_t ns) {
    const int64_t end = now_ + ns;
    while (now_ < end) {
      now_ = std::min(end, std::max(rendezvous_.next_tick_ns(), now_ + 1));
      Take(rendezvous_.Tick(now_));
    }
  }
  // The thread of the rendezvous does not run: what nodes send comes with the first look after that, or behind it.
  void Freeze(int64_t ns) {
    now_ += ns;
    Take(rendezvous_.Tick(now_));
  }
  void Mute(uint64_t peer) { mute_.insert(peer); }
  void Unmute(uint64_t peer) { mute_.erase(peer); }

  // What was sent to `peer` since the last call, except pings.
  std::vector<RootMessage> TakeMessages(uint64_t peer) { return std::exchange(messages_[peer], {}); }
  template <typename Message>
  std::optional<Message> Last(uint64_t peer) {
    std::optional<Message> last;
    for (RootMessage& message : messages_[peer]) {
      if (auto* found = std::get_if<Message>(&message)) last = *found;
    }
    return last;
  }
  std::optional<Assignment> Started(uint64_t peer) {
    auto start = Last<StartMessage>(peer);
    TakeMessages(peer);
    if (!start) return std::nullopt;
    return start->assignment;
  }
  bool Stopping(uint64_t peer) {
    const bool stop = Last<StopMessage>(peer).has_value();
    TakeMessages(peer);
    return stop;
  }
  const std::set<uint64_t>& closed() const { return closed_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  int64_t now() const { return now_; }

 private:
  void Take(Rendezvous::Outputs outputs) {
    for (Rendezvous::Output& output : outputs) {
      if (!output.message) {
        closed_.insert(output.peer);
        continue;
      }
      if (auto* ping = std::get_if<PingMessage>(&*output.message)) {
        if (mute_.count(output.peer) == 0) Take(rendezvous_.Received(output.peer, PongMessage{ping->id}, now_));
        continue;
      }
      messages_[output.peer].push_back(std::move(*output.message));
    }
  }

  const Rendezvous::Options options_;
  Rendezvous rendezvous_;
  int64_t now_ = 0;
  std::map<uint64_t, std::vector<RootMessage>> messages_;
  std::set<uint64_t> mute_;
  std::set<uint64_t> closed_;
};

TEST(RendezvousTest, StaticNodesStartTogetherInEitherOrder) {
  Job job(Static(2));
  NodeInfo big = job.Info(1);
  big.local_world_size = 3;
  big.role = "reader";
  job.Join(10, big);
  EXPECT_THAT(job.Last<WaitingMessage>(10)->text, HasSubstr("1 of 2 nodes are there, missing node rank 0"));
  EXPECT_FALSE(job.Started(10));
  job.Join(11, 0);
  auto second = job.Started(10);
  auto first = job.Started(11);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->group_rank, 0);
  EXPECT_EQ(first->rank_base, 0);
  EXPECT_EQ(first->world_size, 5);
  EXPECT_EQ(first->role_world_size, 2);
  EXPECT_EQ(second->group_rank, 1);
  EXPECT_EQ(second->rank_base, 2);
  EXPECT_EQ(second->role_rank_base, 0);
  EXPECT_EQ(second->role_world_size, 3);
  EXPECT_EQ(second->round, 0);
  EXPECT_EQ(second->restart_count, 0);
  EXPECT_THAT(second->hosts, ElementsAre("host0", "host1"));

  job.Succeed(10);
  EXPECT_FALSE(job.Last<EndMessage>(10));
  job.Succeed(11);
  for (uint64_t peer : {10, 11}) EXPECT_EQ(job.Last<EndMessage>(peer)->exit_code, 0);
  EXPECT_TRUE(job.rendezvous().ended());
}

TEST(RendezvousTest, WhatDoesNotFitIsRefusedWithBothValues) {
  struct Case {
    std::function<void(NodeInfo&)> change;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {[](NodeInfo& info) { info.run_id = "other"; }, {"--rdzv-id", "'other'", "'job'"}},
      {[](NodeInfo& info) { info.version = "2"; }, {"version", "2", "1"}},
      {[](NodeInfo& info) { info.max_nodes = 4; }, {"--nnodes", "2:4", "2:2"}},
      {[](NodeInfo& info) { info.node_rank = 2; }, {"--node-rank", "2", "0 to 1"}},
      {[](NodeInfo& info) { info.node_rank = 0; }, {"--node-rank 0", "host0", "host1", "100", "101"}},
  };
  for (const Case& one : cases) {
    Job job(Static(2));
    job.Join(1, 0);
    NodeInfo info = job.Info(1);
    one.change(info);
    job.Join(2, info);
    auto refused = job.Last<RefusedMessage>(2);
    ASSERT_TRUE(refused) << one.words[0];
    for (const std::string& word : one.words) EXPECT_THAT(refused->text, HasSubstr(word));
    EXPECT_THAT(job.closed(), ElementsAre(2)) << "or it could ask again and again, and read none of the answers";
    job.Lose(2);
    job.Join(3, 1);
    EXPECT_TRUE(job.Started(3)) << "the place is still free";
  }
}

TEST(RendezvousTest, WhoIsFasterThanTheStoresLauncherIsNotNode0) {
  Job fixed(Static(2));
  NodeInfo stranger = fixed.Info(0);
  for (const char* nonce : {"", "guessed"}) {
    stranger.nonce = nonce;
    fixed.Join(7, stranger);
    EXPECT_THAT(fixed.Last<RefusedMessage>(7)->text, HasSubstr("--node-rank 0 is the launcher's that hosts the store"));
    fixed.Lose(7);
  }
  fixed.Join(1, 0);
  fixed.Join(2, 1);
  EXPECT_EQ(fixed.Started(1)->group_rank, 0);

  Job elastic(Elastic(1, 2));
  stranger = elastic.Info(0);
  stranger.nonce = "guessed";
  elastic.Join(7, stranger);
  elastic.Pass(10 * kS);
  EXPECT_FALSE(elastic.Started(7)) << "without node 0";
  elastic.Join(1, 0);
  EXPECT_EQ(elastic.Started(1)->group_rank, 0);
  EXPECT_EQ(elastic.Started(7)->group_rank, 1);
  elastic.Send(7, LeaveMessage{SIGTERM});
  EXPECT_FALSE(elastic.Last<EndMessage>(1)) << "only node 0 takes the store along";
}

TEST(RendezvousTest, WithoutANonceNobodyIsNode0) {
  Rendezvous::Options options = Static(1);
  options.nonce = "";
  Job job(options);
  job.Join(1, 0);
  EXPECT_TRUE(job.Last<RefusedMessage>(1));
}

TEST(RendezvousTest, StrangersHearNothingOfOthers) {
  const auto refusal = [](Job& job, const NodeInfo& info) {
    job.Join(9, info, /*is_known=*/false);
    const std::string text = job.Last<RefusedMessage>(9)->text;
    job.Lose(9);
    return text;
  };
  Job job(Static(2));
  job.Join(1, 0);
  NodeInfo stranger = job.Info(0);
  stranger.host = "mine";
  stranger.pid = 1;
  EXPECT_EQ(refusal(job, stranger), "--node-rank 0 is taken by another launcher; this is mine (pid 1)");
  stranger.run_id = "guessed";
  EXPECT_EQ(refusal(job, stranger), "--rdzv-id is 'guessed' here and another one at the launcher that hosts the store");

  Rendezvous::Options options = Static(1);
  options.fixed_ranks = false;
  Job complete(options);
  complete.Join(1, 0);
  EXPECT_EQ(refusal(complete, complete.Info(1)), "the job is complete: it runs on 1 of 1 nodes");
}

TEST(RendezvousTest, NobodyStartsBeforeTheManagerIsKnown) {
  Rendezvous::Options options = Static(2);
  options.awaits_manager = true;
  Job job(options);
  job.Join(1, 0);
  job.Join(2, 1);
  job.Pass(10 * kS);
  EXPECT_FALSE(job.Started(1));
  job.SetManager("node0:9601");
  EXPECT_EQ(job.Started(1)->manager, "node0:9601");
  EXPECT_EQ(job.Started(2)->manager, "node0:9601");
}

TEST(RendezvousTest, ANodeThatNeverComesIsNamed) {
  Job fixed(Static(4));
  fixed.Join(1, 0);
  fixed.Join(2, 2);
  fixed.Pass(61 * kS);
  auto end = fixed.Last<EndMessage>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 1);
  EXPECT_THAT(end->reason, AllOf(HasSubstr("timed out after 60 s"), HasSubstr("missing node ranks 1, 3")));

  Job elastic(Elastic(4, 8));
  elastic.Join(1, 0);
  elastic.Join(2, 1);
  elastic.Pass(61 * kS);
  EXPECT_THAT(elastic.Last<EndMessage>(2)->reason, HasSubstr("2 of 4:8 nodes"));
}

TEST(RendezvousTest, FailureWithoutRestartsEndsTheJobWithTheFirstCode) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Fail(2, 3, 139, SIGSEGV);
  job.Fail(1, 0, 7);
  EXPECT_FALSE(job.Last<EndMessage>(1)) << "it waits for what else comes";
  job.Pass(kS);
  auto end = job.Last<EndMessage>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 139);
  EXPECT_THAT(end->reason, HasSubstr("rank 3 on node 1 (host1) ended by SIGSEGV"));
  ASSERT_EQ(end->failures.size(), 2u);
  EXPECT_EQ(end->failures[0].exit.rank, 3);
  EXPECT_EQ(end->failures[0].host, "host1");
  EXPECT_EQ(end->failures[1].exit.rank, 0);
}

TEST(RendezvousTest, SingleNodeDoesNotWait) {
  Job job(Static(1));
  job.Join(1, 0);
  job.Fail(1, 1, 7);
  EXPECT_EQ(job.Last<EndMessage>(1)->exit_code, 7);
}

TEST(RendezvousTest, FailureRestartsAllNodesThoseToThatHaveSucceeded) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Join(2, 1);
  job.TakeMessages(1);
  job.TakeMessages(2);
  job.Succeed(1);
  job.Fail(2, 2, 7);
  job.Pass(kS);
  EXPECT_TRUE(job.Stopping(1));
  EXPECT_TRUE(job.Stopping(2));
  job.Stopped(2);
  EXPECT_FALSE(job.Started(2)) << "node 0 still stops";
  job.Stopped(1);
  auto again = job.Started(1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->round, 1);
  EXPECT_EQ(again->restart_count, 1);
  EXPECT_TRUE(job.Started(2));

  job.Send(2, FailedMessage{0, {}, ""});  // of the old round
  job.Send(2, SucceededMessage{0});
  job.Pass(kS);
  EXPECT_THAT(job.TakeMessages(1), IsEmpty());

  job.Fail(1, 0, 9);
  job.Pass(kS);
  EXPECT_EQ(job.Last<EndMessage>(2)->exit_code, 9) << "no restart is left";
}

TEST(RendezvousTest, LostNodeOfAStaticJob) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Join(2, 1);
  job.TakeMessages(1);
  job.Fail(1, 0, 7);  // because node 1 is gone, which shows a moment later
  job.Lose(2);
  job.Pass(kS);
  EXPECT_TRUE(job.Stopping(1));
  job.Stopped(1);
  job.Pass(10 * kS);
  EXPECT_THAT(job.Last<WaitingMessage>(1)->text, HasSubstr("missing node rank 1"));
  job.Join(3, 1);
  EXPECT_EQ(job.Started(3)->restart_count, 1);
  EXPECT_TRUE(job.Started(1));

  job.Lose(3);
  job.Pass(kS);
  auto end = job.Last<EndMessage>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 1);
  EXPECT_THAT(end->reason, HasSubstr("node 1 (host1) was lost"));
}

TEST(RendezvousTest, LostNodeDoesNotComeBack) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Lose(2);
  job.Pass(kS);
  job.Stopped(1);
  job.Pass(61 * kS);
  EXPECT_THAT(job.Last<EndMessage>(1)->reason,
              AllOf(HasSubstr("timed out"), HasSubstr("missing node rank 1"), HasSubstr("node 1 (host1) was lost")));
}

TEST(RendezvousTest, AFailureOnTheNodeThatIsLostThenCounts) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Fail(2, 2, 7);
  job.Lose(2);
  job.Pass(kS);
  EXPECT_EQ(job.Last<EndMessage>(1)->exit_code, 7);
}

// ---- Silence

// A launcher that is stopped, a VM that moves, a machine that swaps: its ranks only wait.
TEST(RendezvousTest, SilenceIsNoDeath) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Mute(2);
  job.Pass(57 * kS);
  EXPECT_THAT(job.closed(), IsEmpty());
  job.Unmute(2);
  job.Pass(5 * kS);
  job.Mute(2);
  job.Pass(57 * kS);
  EXPECT_FALSE(job.rendezvous().ended()) << "it was heard in between";
  job.Pass(4 * kS);
  EXPECT_THAT(job.closed(), ElementsAre(2));
  EXPECT_EQ(job.Last<EndMessage>(1)->exit_code, 1);
  EXPECT_EQ(job.Last<EndMessage>(1)->reason, "node 1 (host1) was lost: its launcher was silent for 60 s");
}

TEST(RendezvousTest, ElasticJobsAreLessPatient) {
  Job job(Elastic(1, 2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.TakeMessages(1);
  job.Mute(2);
  job.Pass(14 * kS);
  EXPECT_FALSE(job.Stopping(1));
  job.Pass(3 * kS);
  EXPECT_TRUE(job.Stopping(1));
  EXPECT_THAT(job.closed(), ElementsAre(2));
}

TEST(RendezvousTest, AClosedConnectionIsALossAtOnce) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  const int64_t killed = job.now();
  job.Lose(2);
  while (!job.rendezvous().ended()) job.Pass(10 * kMs);
  EXPECT_LE(job.now() - killed, 300 * kMs);
  EXPECT_THAT(job.Last<EndMessage>(1)->reason, HasSubstr("the connection to its launcher is gone"));
}

// Node 0's thread does not run: no ping went out, so no answer lies there when it looks again.
TEST(RendezvousTest, TimeInWhichNobodyLookedIsNobodysSilence) {
  for (const Rendezvous::Options& options : {Static(3), Elastic(2, 3)}) {
    Job job(options);
    for (int node : {0, 1, 2}) job.Join(node + 1, node);
    job.Pass(10 * kS);
    for (const int64_t frozen_s : {8, 20, 100, 4000}) {
      job.Freeze(frozen_s * kS);
      job.Pass(10 * kS);
      EXPECT_THAT(job.closed(), IsEmpty()) << frozen_s;
    }
    // A machine that is so busy that its looks come each 8 s.
    for (int look = 0; look < 200; ++look) job.Freeze(8 * kS);
    EXPECT_THAT(job.closed(), IsEmpty());
    EXPECT_FALSE(job.rendezvous().ended());
  }
}

TEST(RendezvousTest, OtherTimesStandStillToo) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Freeze(61 * kS);
  job.Pass(50 * kS);
  EXPECT_FALSE(job.rendezvous().ended()) << "node 1 may be at the door";
  job.Join(2, 1);
  job.Fail(1, 0, 7);
  job.Pass(kS);
  ASSERT_TRUE(job.Stopping(2));
  job.Stopped(1);
  job.Freeze(91 * kS);
  EXPECT_FALSE(job.rendezvous().ended()) << "node 1's answer may be there";
  job.Stopped(2);
  EXPECT_TRUE(job.Started(2));
}

// The network is cut: ranks elsewhere may fail seconds before the silence is long enough.
TEST(RendezvousTest, FailureWaitsForNodesThatDoNotAnswer) {
  Job job(Elastic(1, 2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Pass(kS);
  job.TakeMessages(1);
  job.Mute(2);
  const int64_t cut = job.now();
  job.Fail(1, 0, 7);
  job.Pass(13 * kS);
  EXPECT_THAT(job.TakeMessages(1), IsEmpty());
  while (!job.Last<StopMessage>(1)) job.Pass(100 * kMs);
  EXPECT_LE(job.now() - cut, 16 * kS);
  EXPECT_THAT(job.closed(), ElementsAre(2));
  job.Stopped(1);
  auto again = job.Started(1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->restart_count, 0);
  EXPECT_EQ(again->world_size, 2);
}

TEST(RendezvousTest, AnEndDoesNotWaitLongForNodesThatDoNotAnswer) {
  for (const int max_restarts : {0, 1}) {
    Job job(Static(2, max_restarts));
    job.Join(1, 0);
    job.Join(2, 1);
    job.Mute(2);
    job.Pass(20 * kS);
    job.Fail(1, 0, 7);
    job.Pass(7 * kS);
    EXPECT_THAT(job.closed(), IsEmpty());
    job.Pass(3 * kS);
    EXPECT_EQ(job.rendezvous().ended(), max_restarts == 0) << "where the job goes on, node 1 may come back";
    if (max_restarts == 0) {
      EXPECT_THAT(job.Last<EndMessage>(1)->reason, HasSubstr("node 1 (host1) was lost"));
    }
  }
}

TEST(RendezvousTest, WhoDoesNotLeaveAfterTheEndIsLetGo) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Mute(2);
  job.Pass(20 * kS);
  job.Send(1, LeaveMessage{SIGTERM});
  job.Pass(7 * kS);
  EXPECT_THAT(job.closed(), IsEmpty());
  job.Pass(2 * kS);
  EXPECT_THAT(job.closed(), ElementsAre(2));
}

TEST(RendezvousTest, SilentConnectionsAreClosed) {
  Job job(Static(2));
  job.rendezvous().Opened(9, job.now());  // never joins
  job.Join(1, 0);
  job.Pass(9 * kS);
  EXPECT_THAT(job.closed(), ElementsAre(9));
}

TEST(RendezvousTest, ElasticWaitsForTheLastCall) {
  Job job(Elastic(2, 4));
  job.Join(7, 5);  // faster than the store's own launcher
  job.Join(8, 6);
  job.Pass(6 * kS);
  EXPECT_FALSE(job.Started(7));
  job.Join(1, 0);
  job.Pass(4 * kS);
  EXPECT_FALSE(job.Started(7));
  job.Pass(2 * kS);
  auto host = job.Started(1);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->group_rank, 0);
  EXPECT_EQ(host->group_world_size, 3);
  EXPECT_EQ(job.Started(7)->group_rank, 1);
  EXPECT_EQ(job.Started(8)->group_rank, 2);
}

TEST(RendezvousTest, ElasticStartsAtOnceWhenAllAreThere) {
  Job job(Elastic(1, 2));
  job.Join(1, 0);
  EXPECT_FALSE(job.Started(1));
  job.Join(2, 1);
  EXPECT_TRUE(job.Started(1));
  job.Join(3, 2);
  EXPECT_THAT(job.Last<WaitingMessage>(3)->text, HasSubstr("as many nodes as it may have"));
  EXPECT_FALSE(job.Stopping(1)) << "a spare disturbs nobody";

  // The spare takes the place of the node that goes, with its rank.
  job.Lose(2);
  job.Pass(kS);
  job.Stopped(1);
  EXPECT_EQ(job.Started(3)->group_rank, 1);
  EXPECT_EQ(job.Started(1)->restart_count, 0);
}

TEST(RendezvousTest, ACompleteJobRefusesFurtherNodes) {
  Rendezvous::Options options = Static(2, /*max_restarts=*/1);
  options.fixed_ranks = false;
  Job job(options);
  job.Join(2, 1);
  job.Join(3, 2);  // before the store's own launcher, so that one is too many when it starts
  job.Join(1, 0);
  EXPECT_TRUE(job.Started(1));
  EXPECT_TRUE(job.Started(2));
  EXPECT_THAT(job.Last<RefusedMessage>(3)->text,
              AllOf(HasSubstr("complete"), HasSubstr("2 of 2 nodes (host0, host1)")));
  job.Join(4, 3);
  EXPECT_THAT(job.Last<RefusedMessage>(4)->text, HasSubstr("complete"));
  EXPECT_THAT(job.closed(), ElementsAre(3, 4));
  EXPECT_FALSE(job.Last<RefusedMessage>(4)->another_job);

  // A node that is gone may be replaced.
  job.Lose(2);
  job.Join(5, 4);
  EXPECT_FALSE(job.Last<RefusedMessage>(5));
  job.Pass(kS);
  job.Stopped(1);
  EXPECT_EQ(job.Started(5)->group_rank, 1);
}

TEST(RendezvousTest, ElasticGrowsAndShrinksAtNoCostAndKeepsRanks) {
  Job job(Elastic(1, 4));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Join(3, 2);
  job.Pass(6 * kS);
  EXPECT_EQ(job.Started(3)->group_rank, 2);
  job.TakeMessages(1);
  job.Join(4, 3);
  EXPECT_TRUE(job.Stopping(1));
  for (uint64_t peer : {1, 2, 3}) job.Stopped(peer);
  EXPECT_EQ(job.Started(4)->group_rank, 3);
  EXPECT_EQ(job.Started(3)->group_rank, 2);

  job.Lose(2);
  job.Pass(kS);
  for (uint64_t peer : {1, 3, 4}) job.Stopped(peer);
  EXPECT_EQ(job.Started(1)->group_rank, 0);
  auto kept = job.Started(3);
  EXPECT_EQ(kept->restart_count, 0);
  EXPECT_EQ(job.Started(4)->group_rank, 1) << "fills the gap";

  job.Send(4, LeaveMessage{SIGTERM});
  EXPECT_TRUE(job.Stopping(1));
  job.Stopped(1);
  job.Stopped(3);
  EXPECT_FALSE(job.Started(1)) << "the node that leaves still has ranks";
  job.Lose(4);
  EXPECT_EQ(job.Started(1)->group_world_size, 2);
}

TEST(RendezvousTest, ElasticBelowTheLeastWaitsForNodes) {
  Job job(Elastic(2, 3));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Pass(6 * kS);
  job.Lose(2);
  job.Pass(kS);
  job.TakeMessages(1);
  job.Stopped(1);
  job.Pass(20 * kS);
  EXPECT_FALSE(job.Started(1));
  job.Join(3, 2);
  job.Pass(6 * kS);
  EXPECT_EQ(job.Started(3)->restart_count, 0);
}

TEST(RendezvousTest, NobodyJoinsWhatIsNearlyDone) {
  Job job(Elastic(1, 3));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Pass(6 * kS);
  job.TakeMessages(1);
  job.Succeed(1);
  job.Join(3, 2);
  EXPECT_THAT(job.TakeMessages(1), IsEmpty());
  job.Succeed(2);
  for (uint64_t peer : {1, 2, 3}) EXPECT_EQ(job.Last<EndMessage>(peer)->exit_code, 0);
}

TEST(RendezvousTest, ANodeThatHasSucceededIsNotMissed) {
  Job job(Static(2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Succeed(2);
  job.Lose(2);
  job.Pass(kS);
  job.Succeed(1);
  EXPECT_EQ(job.Last<EndMessage>(1)->exit_code, 0);
}

TEST(RendezvousTest, LeavingAStaticJobEndsItForAll) {
  Job job(Static(2, 3));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Send(2, LeaveMessage{SIGTERM});
  auto end = job.Last<EndMessage>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 143);
  EXPECT_THAT(end->reason, HasSubstr("node 1 (host1) left: SIGTERM"));
  EXPECT_EQ(end->cause, StopCause::kTerminated);
}

// A launcher of a task calls itself a rank: the cause does not depend on what it is called.
TEST(RendezvousTest, ATaskThatLeavesSaysWhyAsANodeDoes) {
  Rendezvous::Options options = Static(2, 3);
  options.tasks = true;
  for (const auto& [signal, cause] :
       {std::pair(SIGTERM, StopCause::kTerminated), std::pair(SIGINT, StopCause::kInterrupted)}) {
    Job job(options);
    job.Join(1, 0);
    job.Join(2, 1);
    job.Send(2, LeaveMessage{signal});
    const auto end = job.Last<EndMessage>(1);
    ASSERT_TRUE(end);
    EXPECT_THAT(end->reason, HasSubstr("rank 1 (host1) left: SIG"));
    EXPECT_EQ(end->cause, cause);
  }
}

TEST(RendezvousTest, AnEndSaysItsCause) {
  {
    Job job(Static(2));
    job.Join(1, 0);
    job.Join(2, 1);
    job.Lose(2);
    job.Pass(10 * kS);
    EXPECT_EQ(job.Last<EndMessage>(1)->cause, StopCause::kNodeLost);
  }
  Job job(Static(1));
  job.Join(1, 0);
  job.Fail(1, 0, 7);
  EXPECT_EQ(job.Last<EndMessage>(1)->cause, StopCause::kRankExit);
}

TEST(RendezvousTest, TheStoresNodeCannotLeaveAnElasticJob) {
  Job job(Elastic(1, 2));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Send(1, LeaveMessage{SIGINT});
  EXPECT_EQ(job.Last<EndMessage>(2)->exit_code, 130);
}

TEST(RendezvousTest, ANodeThatDoesNotStopEndsTheJob) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Fail(1, 0, 7);
  job.Pass(kS);
  job.Stopped(1);
  job.Pass(91 * kS);
  EXPECT_THAT(job.Last<EndMessage>(1)->reason, HasSubstr("node 1 (host1) did not stop within 90 s"));
}

TEST(RendezvousTest, WhoComesAfterTheEndTriesAgainLater) {
  Job job(Static(1));
  job.Join(1, 0);
  job.Succeed(1);
  job.Join(2, 0);
  EXPECT_FALSE(job.Last<RefusedMessage>(2));
  EXPECT_THAT(job.closed(), ElementsAre(2));
}

TEST(RendezvousTest, WhoWatchesMayRestartAndEndTheJob) {
  Job job(Static(2, 1));
  job.Join(1, 0);
  job.Restart("early");
  job.Join(2, 1);
  job.TakeMessages(2);
  job.Restart("no step for 60 s");
  EXPECT_EQ(job.Last<StopMessage>(2)->reason, "no step for 60 s");
  job.Restart("again");
  job.Stopped(1);
  job.Stopped(2);
  EXPECT_EQ(job.Started(2)->restart_count, 1);
  job.Restart("no step for 60 s");
  EXPECT_EQ(job.Last<EndMessage>(1)->exit_code, 1);
  EXPECT_EQ(job.Last<EndMessage>(1)->reason, "no step for 60 s");
}

TEST(RendezvousTest, WaitingNodesAreToldWhenThatChanges) {
  Job job(Static(3));
  job.Join(1, 0);
  job.Pass(6 * kS);
  job.TakeMessages(1);
  job.Pass(20 * kS);
  EXPECT_THAT(job.TakeMessages(1), IsEmpty());
  job.Join(2, 2);
  job.Pass(6 * kS);
  EXPECT_THAT(job.Last<WaitingMessage>(1)->text, HasSubstr("missing node rank 1"));
}

TEST(RendezvousTest, SaysWhomItWaitsFor) {
  Job fixed(Static(8, 1));
  EXPECT_EQ(fixed.rendezvous().WaitsFor(), "nodes 0-7 (0 of 8 here)");
  for (int node : {0, 1, 3, 4}) fixed.Join(static_cast<uint64_t>(node) + 1, node);
  EXPECT_EQ(fixed.rendezvous().WaitsFor(), "nodes 2, 5-7 (4 of 8 here)");
  for (int node : {2, 5, 6, 7}) fixed.Join(static_cast<uint64_t>(node) + 1, node);
  EXPECT_EQ(fixed.rendezvous().WaitsFor(), "");
  // A node is lost, and the others have stopped.
  fixed.Lose(6);
  fixed.Pass(10 * kS);
  for (uint64_t peer : {1, 2, 3, 4, 5, 7, 8}) fixed.Stopped(peer);
  EXPECT_EQ(fixed.rendezvous().WaitsFor(), "node 5 (7 of 8 here)");

  Job elastic(Elastic(2, 4));
  elastic.Join(1, 0);
  EXPECT_EQ(elastic.rendezvous().WaitsFor(), "1 more node (1 of 2:4 here)");
  elastic.Join(2, 1);
  EXPECT_EQ(elastic.rendezvous().WaitsFor(), "more nodes, for a while (2 of 2:4 here)");
  elastic.Pass(6 * kS);
  EXPECT_EQ(elastic.rendezvous().WaitsFor(), "");

  Rendezvous::Options tasks = Static(3);
  tasks.tasks = true;
  EXPECT_EQ(Job(tasks).rendezvous().WaitsFor(), "ranks 0-2 (0 of 3 here)");
}

TEST(RendezvousTest, TiersFormATree) {
  Rendezvous::Options options = Static(7);
  options.fan_out = 2;
  Job job(options);
  for (int node = 0; node < 7; ++node) {
    NodeInfo info = job.Info(node);
    info.tier_port = 1000 + node;
    info.address = node == 3 ? "fd00::3" : "10.0.0." + std::to_string(node);
    job.Join(node + 1, info);
  }
  std::vector<std::string> above;
  for (int node = 0; node < 7; ++node) above.push_back(job.Started(node + 1)->tier);
  EXPECT_THAT(above,
              ElementsAre("", "", "10.0.0.0:1000", "10.0.0.0:1000", "10.0.0.1:1001", "10.0.0.1:1001", "10.0.0.2:1002"));
}

}  // namespace
}  // namespace taskd::run
