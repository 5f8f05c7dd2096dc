// Events in any order, at any time: what has to hold for the rendezvous whatever happens.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "agent/run/rendezvous.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1000 * kMs;

// Nodes that do anything at any time, in every kind of job.
class RandomJob {
 public:
  explicit RandomJob(uint32_t seed) : random_(seed) {
    const int kind = Below(3);
    const int least = 1 + Below(3);
    options_.run_id = "job";
    options_.version = "1";
    options_.min_nodes = least;
    options_.max_nodes = kind == 0 ? least + 1 + Below(3) : least;
    options_.fixed_ranks = kind == 2;  // 0: elastic, 1: c10d N:N, 2: static
    options_.max_restarts = Below(6);
    options_.join_timeout_ns = 60 * kS;
    options_.last_call_ns = 5 * kS;
    rendezvous_.emplace(options_, now_);
  }

  void Run() {
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) Act();
    // From now on all nodes behave, and nobody joins: it ends.
    for (int i = 0; i < 2000 && !ended_; ++i) {
      for (auto peer : Peers()) {
        Node& node = nodes_[peer];
        node.mute = false;
        if (node.stopping) Stopped(peer);
        if (nodes_.count(peer) > 0 && nodes_[peer].running && !ended_) {
          Take(rendezvous_->Received(peer, SucceededMessage{node.round}, now_));
        }
      }
      Pass(kS);
    }
    EXPECT_TRUE(ended_ || nodes_.empty() || !joined_once_);
  }

 private:
  struct Node {
    bool running = false;
    bool stopping = false;
    bool mute = false;
    int round = -1;
  };

  int Below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  std::vector<uint64_t> Peers() const {
    std::vector<uint64_t> peers;
    for (const auto& [peer, node] : nodes_) peers.push_back(peer);
    return peers;
  }

  void Act() {
    const int what = Below(20);
    if (nodes_.empty() || what < 3) {
      Join();
      return;
    }
    const std::vector<uint64_t> peers = Peers();
    const uint64_t peer = peers[Below(static_cast<int>(peers.size()))];
    Node& node = nodes_[peer];
    const int round = Below(8) == 0 ? Below(5) : node.round;
    if (what < 9) {
      Pass(Below(3) == 0 ? Below(9) * kS : Below(400) * kMs);
    } else if (what < 10) {
      process::WorkerExit exit;
      exit.code = 1 + Below(200);
      Take(rendezvous_->Received(peer, FailedMessage{std::max(round, 0), exit, ""}, now_));
    } else if (what < 12) {
      Take(rendezvous_->Received(peer, SucceededMessage{std::max(round, 0)}, now_));
    } else if (what < 17) {
      if (node.stopping) Stopped(peer);
    } else if (what < 18) {
      Gone(peer);
      Take(rendezvous_->Lost(peer, now_));
    } else if (what < 19) {
      node.mute = Below(4) == 0;
    } else if (Below(10) == 0) {
      Take(rendezvous_->Received(peer, LeaveMessage{SIGTERM}, now_));
    } else {
      Take(rendezvous_->Received(peer, PongMessage{Below(100)}, now_));
      Take(rendezvous_->Received(peer + 1000, StoppedMessage{0}, now_));
    }
  }

  void Join() {
    const uint64_t peer = next_peer_++;
    NodeInfo info;
    info.run_id = "job";
    info.version = "1";
    info.host = fmt::format("host{}", peer);
    info.node_rank = options_.fixed_ranks ? Below(options_.max_nodes) : -1;
    info.local_world_size = 1 + Below(3);
    info.role = Below(2) == 0 ? "a" : "b";
    info.min_nodes = options_.min_nodes;
    info.max_nodes = options_.max_nodes;
    if (peer == 1) info.nonce = options_.nonce;
    sizes_[peer] = info.local_world_size;
    nodes_[peer] = {};
    Take(rendezvous_->Opened(peer, now_));
    Take(rendezvous_->Received(peer, JoinMessage{info}, now_));
    joined_once_ = true;
  }

  void Stopped(uint64_t peer) {
    Node& node = nodes_[peer];
    node.stopping = node.running = false;
    Take(rendezvous_->Received(peer, StoppedMessage{node.round}, now_));
  }

  void Gone(uint64_t peer) { nodes_.erase(peer); }

  void Pass(int64_t ns) {
    const int64_t end = now_ + ns;
    while (now_ < end) {
      now_ = std::min(end, std::max(rendezvous_->next_tick_ns(), now_ + kMs));
      Take(rendezvous_->Tick(now_));
    }
  }

  void Take(const Rendezvous::Outputs& outputs) {
    std::map<uint64_t, Assignment> starts;
    std::vector<std::pair<uint64_t, int64_t>> pings;
    for (const auto& [peer, message] : outputs) {
      if (!message) {
        Gone(peer);
        continue;
      }
      if (nodes_.count(peer) == 0) {
        ADD_FAILURE() << "a message to a node that is gone";
        continue;
      }
      Node& node = nodes_[peer];
      if (const auto* start = std::get_if<StartMessage>(&*message)) {
        EXPECT_FALSE(ended_) << "a start after the end";
        starts[peer] = start->assignment;
      } else if (const auto* stop = std::get_if<StopMessage>(&*message)) {
        EXPECT_FALSE(ended_);
        EXPECT_TRUE(node.running);
        EXPECT_FALSE(node.stopping) << "two stops";
        EXPECT_EQ(stop->round, node.round);
        node.stopping = true;
      } else if (std::holds_alternative<EndMessage>(*message)) {
        EXPECT_TRUE(rendezvous_->ended());
        ended_ = true;
      } else if (const auto* ping = std::get_if<PingMessage>(&*message)) {
        if (!node.mute) pings.emplace_back(peer, ping->id);
      }
    }
    if (!starts.empty()) CheckStarts(starts);
    for (auto [peer, id] : pings) {
      if (nodes_.count(peer) > 0) Take(rendezvous_->Received(peer, PongMessage{id}, now_));
    }
  }

  void CheckStarts(const std::map<uint64_t, Assignment>& starts) {
    for (const auto& [peer, node] : nodes_) EXPECT_FALSE(node.running) << "a start while ranks of the last round run";
    ++round_;
    const int size = static_cast<int>(starts.size());
    EXPECT_GE(size, options_.min_nodes);
    EXPECT_LE(size, options_.max_nodes);
    std::vector<uint64_t> by_rank(size);
    std::set<int> ranks;
    for (const auto& [peer, assignment] : starts) {
      EXPECT_EQ(assignment.round, round_);
      EXPECT_LE(assignment.restart_count, options_.max_restarts);
      EXPECT_EQ(assignment.group_world_size, size);
      ASSERT_LT(assignment.group_rank, size);
      EXPECT_TRUE(ranks.insert(assignment.group_rank).second);
      by_rank[assignment.group_rank] = peer;
      nodes_[peer].running = true;
      nodes_[peer].stopping = false;
      nodes_[peer].round = assignment.round;
    }
    if (!options_.fixed_ranks) {
      EXPECT_EQ(by_rank[0], 1u) << "the store's host is group rank 0";
    }
    int base = 0;
    for (uint64_t peer : by_rank) {
      EXPECT_EQ(starts.at(peer).rank_base, base);
      base += sizes_[peer];
    }
    for (const auto& [peer, assignment] : starts) EXPECT_EQ(assignment.world_size, base);
  }

  std::mt19937 random_;
  Rendezvous::Options options_;
  std::optional<Rendezvous> rendezvous_;
  int64_t now_ = 0;
  uint64_t next_peer_ = 1;
  int round_ = -1;
  bool ended_ = false;
  bool joined_once_ = false;
  std::map<uint64_t, Node> nodes_;
  std::map<uint64_t, int> sizes_;
};

TEST(RendezvousRandomTest, InvariantsHoldAndItEnds) {
  for (uint32_t seed = 1; seed <= 1000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomJob(seed).Run();
  }
}

}  // namespace
}  // namespace taskd::run
