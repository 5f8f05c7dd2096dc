#include "common/handshake_budget.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Id = HandshakeBudget::Id;
constexpr int64_t kMs = 1'000'000;

// The ids that may begin now, in their order.
std::vector<Id> Begin(HandshakeBudget& budget, int64_t now_ns = 0) {
  std::vector<Id> ids;
  while (const auto turn = budget.Next(now_ns)) ids.push_back(turn->begin);
  return ids;
}

void AddAndWant(HandshakeBudget& budget, Id id, const std::string& peer, int64_t now_ns = 0) {
  EXPECT_EQ(budget.Add(id, peer, now_ns), std::nullopt);
  budget.Wants(id);
}

TEST(HandshakeBudgetTest, WhoHasSentNothingBeginsNothing) {
  HandshakeBudget budget({});
  budget.Add(1, "a", 0);
  EXPECT_THAT(Begin(budget), IsEmpty());
  budget.Wants(1);
  budget.Wants(1);
  EXPECT_THAT(Begin(budget), ElementsAre(1));
  budget.Proven(1);
  EXPECT_TRUE(budget.idle());
}

TEST(HandshakeBudgetTest, PeersHaveTheirTurnsAndTheirShares) {
  HandshakeBudget budget({.handshakes_of_peer = 2});
  for (Id id : {1, 2, 3, 4}) AddAndWant(budget, id, "a");
  AddAndWant(budget, 5, "b");
  EXPECT_THAT(Begin(budget), ElementsAre(4, 5, 3)) << "the newest of a; the others wait for a's two";
  budget.Proven(3);
  EXPECT_THAT(Begin(budget), ElementsAre(2));
}

TEST(HandshakeBudgetTest, WhoFailsGetsATrickleAndWhoSucceedsDoesNot) {
  HandshakeBudget budget({.handshakes_of_peer = 2, .cool_ms = 100});
  Id id = 0;
  for (int i = 0; i < 50; ++i) {
    AddAndWant(budget, ++id, "honest");
    ASSERT_THAT(Begin(budget), ElementsAre(id));
    budget.Proven(id);
  }
  int begun = 0;
  for (int64_t ms = 0; ms < 1000; ++ms) {
    AddAndWant(budget, ++id, "fails", ms * kMs);
    for (const Id began : Begin(budget, ms * kMs)) {
      ++begun;
      budget.Failed(began, ms * kMs);
    }
  }
  EXPECT_EQ(begun, 20) << "two each 100 ms";
  AddAndWant(budget, ++id, "honest", 999 * kMs);
  EXPECT_THAT(Begin(budget, 999 * kMs), ElementsAre(id));
}

TEST(HandshakeBudgetTest, WhoFailsLateHasPaid) {
  HandshakeBudget budget({.handshakes_of_peer = 1, .cool_ms = 100});
  AddAndWant(budget, 1, "a");
  AddAndWant(budget, 2, "a");
  EXPECT_THAT(Begin(budget), ElementsAre(2));
  budget.Failed(2, 100 * kMs);
  EXPECT_THAT(Begin(budget, 100 * kMs), ElementsAre(1));
}

TEST(HandshakeBudgetTest, TheOldestOfThePeerWithMostMakesRoom) {
  HandshakeBudget budget({.connections = 4});
  budget.Add(1, "few", 0);
  for (Id id : {2, 3, 4}) budget.Add(id, "many", 0);
  EXPECT_EQ(budget.Add(5, "new", 0), 2);
  EXPECT_EQ(budget.Add(6, "many", 0), 3);
  EXPECT_EQ(budget.size(), 4u);
  budget.Failed(2, 0);  // is gone already
  EXPECT_EQ(budget.size(), 4u);
}

TEST(HandshakeBudgetTest, SilentOnesMakeRoomBeforeHandshakes) {
  HandshakeBudget budget({.connections = 3});
  AddAndWant(budget, 1, "a");
  EXPECT_THAT(Begin(budget), ElementsAre(1));
  budget.Add(2, "a", 0);
  budget.Add(3, "a", 0);
  EXPECT_EQ(budget.Add(4, "b", 0), 2);
}

TEST(HandshakeBudgetTest, ANewPeerBeginsWhereAllHandshakesAreTaken) {
  HandshakeBudget budget({.handshakes = 4, .handshakes_of_peer = 4});
  for (Id id : {1, 2, 3}) AddAndWant(budget, id, "a");
  AddAndWant(budget, 4, "b");
  EXPECT_EQ(Begin(budget).size(), 4u);
  AddAndWant(budget, 5, "c");
  auto turn = budget.Next(0);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn->begin, 5u);
  EXPECT_EQ(turn->drop, 3) << "of a, the newest began first";
  AddAndWant(budget, 6, "c");
  EXPECT_FALSE(budget.Next(0)) << "nobody has two more than c";
}

TEST(HandshakeBudgetTest, TimeIsShorterWhileOthersWait) {
  HandshakeBudget budget({.handshakes_of_peer = 1, .proof_ms = 1000, .hurried_ms = 100});
  AddAndWant(budget, 1, "a");
  AddAndWant(budget, 2, "b");
  budget.Add(3, "c", 0);
  EXPECT_THAT(Begin(budget), UnorderedElementsAre(1, 2));
  AddAndWant(budget, 4, "a");
  EXPECT_THAT(budget.Expire(99 * kMs), IsEmpty());
  EXPECT_THAT(budget.Expire(100 * kMs), ElementsAre(1));
  EXPECT_THAT(budget.Expire(1000 * kMs), UnorderedElementsAre(2, 3, 4));
  EXPECT_EQ(budget.size(), 0u);
  budget.Expire(1'000'000 * kMs);
  EXPECT_TRUE(budget.idle()) << "nothing is remembered for ever";
}

// Nodes of a job behind one address, all started within a second: one thread makes their handshakes, and whoever is
// closed, or has waited for as long as gRPC's clients do here, comes again as they do.
class StartOfAJob {
 public:
  StartOfAJob(size_t nodes, int64_t handshake_ns) : handshake_ns_(handshake_ns), returns_(nodes) {
    for (size_t node = 0; node < nodes; ++node) {
      After(static_cast<int64_t>(node) * 1000 * kMs / static_cast<int64_t>(nodes), [this, node] { Connect(node); });
    }
    Tick();
  }

  void Run() {
    while (in_ < returns_.size() && now_ns_ < 600'000 * kMs) {
      now_ns_ = queue_.begin()->first;
      queue_.begin()->second();
      queue_.erase(queue_.begin());
      Begin();
    }
  }

  size_t in() const { return in_; }
  int64_t now_ns() const { return now_ns_; }
  int most_returns() const { return *std::max_element(returns_.begin(), returns_.end()); }
  size_t left() const { return budget_.size(); }

 private:
  static constexpr int64_t kTickNs = 100 * kMs;
  static constexpr int64_t kRoundTripNs = 2 * kMs;
  static constexpr int64_t kPatienceNs = 5'000 * kMs;

  void After(int64_t delay_ns, std::function<void()> happens) {
    queue_.emplace(now_ns_ + delay_ns, std::move(happens));
  }
  void Tick() {
    for (const Id id : budget_.Expire(now_ns_)) Close(id);
    After(kTickNs, [this] { Tick(); });
  }
  void Connect(size_t node) {
    const Id id = next_++;
    node_of_[id] = node;
    if (const auto victim = budget_.Add(id, "10.0.0.1", now_ns_)) Close(*victim);
    budget_.Wants(id);
    After(kPatienceNs, [this, id] {
      budget_.Failed(id, now_ns_);
      Close(id);
    });
  }
  void Close(Id id) {
    const auto found = node_of_.find(id);
    if (found == node_of_.end()) return;
    const size_t node = found->second;
    node_of_.erase(found);
    const double backoff_ms = std::min(100 * std::pow(1.6, returns_[node]++), 1000.);
    const double jitter = std::uniform_real_distribution(0.8, 1.2)(random_);
    After(static_cast<int64_t>(backoff_ms * jitter * kMs), [this, node] { Connect(node); });
  }
  void Begin() {
    while (const auto turn = budget_.Next(now_ns_)) {
      if (turn->drop) Close(*turn->drop);
      free_ns_ = std::max(free_ns_, now_ns_) + handshake_ns_;
      After(free_ns_ - now_ns_ + kRoundTripNs, [this, id = turn->begin] {
        budget_.Proven(id);
        in_ += node_of_.erase(id);
      });
    }
  }

  const int64_t handshake_ns_;
  HandshakeBudget budget_{{}};
  std::minstd_rand random_{1};
  std::multimap<int64_t, std::function<void()>> queue_;  // by time: what happens then
  int64_t now_ns_ = 0;
  int64_t free_ns_ = 0;  // when the thread is
  Id next_ = 0;
  std::map<Id, size_t> node_of_;  // of connections that have not proven themselves
  std::vector<int> returns_;      // of each node
  size_t in_ = 0;
};

TEST(HandshakeBudgetTest, AllNodesOfAJobBehindOneAddressGetIn) {
  constexpr size_t kNodes = 2048;
  for (const int64_t handshake_ns : {kMs * 3 / 2, kMs * 6}) {
    StartOfAJob job(kNodes, handshake_ns);
    job.Run();
    EXPECT_EQ(job.in(), kNodes);
    EXPECT_EQ(job.left(), 0u);
    EXPECT_LT(job.now_ns(), static_cast<int64_t>(kNodes) * handshake_ns * 11 / 10) << "the thread was never idle";
    EXPECT_LE(job.most_returns(), 10) << "nobody is starved";
  }
}

// Addresses of one network, as many as there are connections.
std::string AddressOf(const std::string& network, Id number) {
  std::ostringstream address;
  address << network << std::hex << number << "::/64";
  return address.str();
}

TEST(HandshakeBudgetTest, ManyPeersOfANetworkKeepNobodyElseOut) {
  for (const std::string honest : {"10.0.0.7", "2001:db8:1:1::/64", "user 1000", "zone"}) {
    HandshakeBudget budget({.connections = 64, .handshakes = 16});
    Id id = 1000;
    const auto flood = [&](int connections, int64_t now_ns) {
      std::vector<Id> closed;
      for (int i = 0; i < connections; ++i, ++id) {
        if (const auto victim = budget.Add(id, AddressOf("2001:db8:bad:", id), now_ns)) closed.push_back(*victim);
        budget.Wants(id);
      }
      return closed;
    };
    flood(64, 0);
    EXPECT_EQ(Begin(budget).size(), 16u);
    ASSERT_TRUE(budget.Add(1, honest, kMs));
    EXPECT_THAT(flood(1000, kMs), ::testing::Not(::testing::Contains(1u))) << honest;
    Begin(budget, kMs);
    budget.Wants(1);
    const auto turn = budget.Next(kMs);
    ASSERT_TRUE(turn) << honest << ": all places are of the other network";
    EXPECT_EQ(turn->begin, 1u) << honest;
    EXPECT_TRUE(turn->drop);
    EXPECT_THAT(flood(1000, 2 * kMs), ::testing::Not(::testing::Contains(1u))) << honest;
  }
}

TEST(HandshakeBudgetTest, NetworksTakeTurns) {
  HandshakeBudget budget({.handshakes = 4});
  for (Id id = 0; id < 8; ++id) AddAndWant(budget, id, AddressOf("2001:db8:a:", id));
  AddAndWant(budget, 8, "2001:db8:b:1::/64");
  AddAndWant(budget, 9, "10.0.0.7");
  std::vector<Id> first = Begin(budget);
  ASSERT_GE(first.size(), 4u);
  first.resize(4);
  EXPECT_THAT(first, ::testing::IsSupersetOf({8u, 9u}));
}

TEST(HandshakeBudgetTest, FailuresOfAnyNumberOfPeersAreBounded) {
  HandshakeBudget budget({.handshakes_of_peer = 1});
  for (Id id = 0; id < 40'000; ++id) {
    AddAndWant(budget, id, "peer " + std::to_string(id));
    ASSERT_THAT(Begin(budget), ElementsAre(id));
    budget.Failed(id, 0);
  }
  AddAndWant(budget, 40'000, "peer 39999");
  EXPECT_THAT(Begin(budget), IsEmpty());
  AddAndWant(budget, 40'001, "peer 0");
  EXPECT_THAT(Begin(budget), ElementsAre(40'001)) << "the oldest are forgotten";
}

}  // namespace
}  // namespace taskd
