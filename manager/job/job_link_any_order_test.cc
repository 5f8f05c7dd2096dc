// The job link at any size, with events in any order.
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/job/job_link_core.h"
#include "manager/job/test_link_job.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;

TEST(JobLinkCoreTest, ManyNodesAreFewMessages) {
  constexpr uint32_t kNodes = 2048;
  LinkJob job;
  for (uint32_t i = 0; i < kNodes; ++i) {
    job.Enter(10 + i, Join(i, kNodes));
    job.Pass(kMs);
  }
  job.Pass(2 * kS);
  EXPECT_TRUE(job.Last<JobState>(10).all_joined);
  // One each when it joins, one each when all have, and one a second in the two seconds that it took.
  EXPECT_LE(job.messages, 5u * kNodes);
  job.messages = 0;
  for (uint32_t i = 0; i < kNodes; ++i) job.End(10 + i, 0);
  EXPECT_EQ(job.messages, kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) EXPECT_THAT(job.Ends(10 + i), ElementsAre(0));
  job.messages = 0;
  for (uint32_t i = kNodes - 1; i > 0; --i) job.Lose(10 + i);
  EXPECT_LE(job.messages, 2u * kNodes);
  EXPECT_EQ(job.Last<JobState>(10).connected, 1u);
}

// Nodes that do anything at any time. A life is one `taskd run`: its streams hear at most one code, and all lives that
// were in one attempt the same.
class RandomNodes {
 public:
  explicit RandomNodes(uint32_t seed) : random_(seed), nodes_(1 + Below(4)) {}

  void Run() {
    for (int i = 0; i < 500 && !::testing::Test::HasFailure(); ++i) Act();
    // Now nobody else comes and all do their part: every stream hears an end, and nothing is left.
    for (int i = 0; i < 50 && !Open().empty(); ++i) {
      for (uint64_t peer : Open()) {
        if (lives_[streams_[peer]].code) {
          Close(peer);
        } else {
          Take(job_.core.Ended(peer, {0, ""}, job_.now));
        }
      }
      job_.Pass(kS);
      Check();
      // Who waits for nodes that never come gives up.
      if (i > 20) {
        for (uint64_t peer : Open()) Close(peer);
      }
    }
    job_.Pass(60 * kS);
    EXPECT_EQ(job_.core.next_tick_ns(), std::numeric_limits<int64_t>::max());
  }

 private:
  struct Life {
    uint32_t index = 0;
    bool serves = false;
    std::optional<int> code;
  };

  int Below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  std::vector<uint64_t> Open() const {
    std::vector<uint64_t> open;
    for (const auto& [peer, life] : streams_) open.push_back(peer);
    return open;
  }
  void Close(uint64_t peer) {
    streams_.erase(peer);
    Take(job_.core.Lost(peer, job_.now));
  }
  void Take(JobOutputs outputs, bool may_begin_next = true) {
    job_.Take(std::move(outputs));
    Check(may_begin_next);
  }

  // Everything that was heard since the last time.
  void Check(bool may_begin_next = true) {
    std::set<int> codes;
    for (auto& [peer, messages] : job_.heard) {
      for (const JobMessage& message : messages) {
        ASSERT_FALSE(over_.count(peer)) << "peer " << peer << " hears something after its last";
        if (const auto* end = std::get_if<JobEnd>(&message)) {
          ASSERT_FALSE(ended_.count(peer)) << "a second end";
          ended_.insert(peer);
          Life& life = lives_[of_.at(peer)];
          ASSERT_TRUE(!life.code || *life.code == end->code) << "one run, two codes";
          life.code = end->code;
          codes.insert(end->code);
        } else if (std::holds_alternative<JobRefusal>(message) || std::holds_alternative<StreamEnd>(message)) {
          over_.insert(peer);
          streams_.erase(peer);
        }
      }
      messages.clear();
    }
    ASSERT_TRUE(codes.size() <= 1 || may_begin_next) << "one attempt, two codes";
    for (int code : codes) ASSERT_TRUE(code >= 0 && code <= 255);
  }

  void Join(size_t life, bool again) {
    const uint64_t peer = next_peer_++;
    JobJoin join = manager::Join(lives_[life].index, static_cast<uint32_t>(nodes_), absl::StrCat("life", life));
    join.serves = lives_[life].serves;
    if (again && Below(3) == 0) join.ready = true;
    streams_[peer] = of_[peer] = life;
    Take(job_.core.Join(peer, std::move(join), job_.now));
  }

  void Act() {
    const int what = Below(20);
    const std::vector<uint64_t> open = Open();
    if (open.empty() || what < 5) {
      if (!lives_.empty() && Below(3) == 0) {
        const auto life = static_cast<size_t>(Below(static_cast<int>(lives_.size())));
        if (!lives_[life].code) Join(life, true);  // who has heard the end does not come back
      } else {
        lives_.push_back({static_cast<uint32_t>(Below(nodes_ + 1)), Below(4) == 0, std::nullopt});
        Join(lives_.size() - 1, false);
      }
      return;
    }
    const uint64_t peer = open[static_cast<size_t>(Below(static_cast<int>(open.size())))];
    if (what < 9) {
      job_.Pass(Below(3) == 0 ? Below(7) * kS : Below(500) * kMs);
      Check();
    } else if (what < 11) {
      Take(job_.core.Ended(peer, {Below(4) == 0 ? 1 + Below(300) : 0, "why"}, job_.now), false);
    } else if (what < 12) {
      Take(job_.core.Ready(peer, job_.now));
    } else if (what < 13) {
      Take(job_.core.Mpirun(peer, {static_cast<uint32_t>(Below(5)), Below(2) == 0, 0}, job_.now));
    } else if (what < 16) {
      Close(peer);
    } else if (what < 18) {
      const uint64_t caller = next_peer_++;
      of_[caller] = 0;
      Take(job_.core.Call(caller, std::string(1, static_cast<char>('a' + Below(nodes_))), "x", job_.now));
      callers_.push_back(caller);
    } else if (!callers_.empty()) {
      const uint64_t caller = callers_[static_cast<size_t>(Below(static_cast<int>(callers_.size())))];
      if (over_.count(caller)) return;
      switch (Below(4)) {
        case 0:
          Take(job_.core.Input(caller, std::string(static_cast<size_t>(Below(6)) << 20, 'x'), job_.now));
          break;
        case 1:
          Take(job_.core.InputEnd(caller, job_.now));
          break;
        case 2:
          Take(job_.core.Answer(
              peer, {static_cast<uint64_t>(Below(50)), static_cast<RemoteAnswer::Kind>(Below(3)), "y", 0}, job_.now));
          break;
        default:
          Take(job_.core.Lost(caller, job_.now));
          over_.insert(caller);
      }
    }
  }

  std::mt19937 random_;
  const int nodes_;
  LinkJob job_;
  uint64_t next_peer_ = 1;
  std::vector<Life> lives_;
  std::map<uint64_t, size_t> streams_;  // open ones: their life
  std::map<uint64_t, size_t> of_;       // all
  std::set<uint64_t> over_, ended_;
  std::vector<uint64_t> callers_;
};

TEST(JobLinkCoreTest, AnythingAtAnyTime) {
  for (uint32_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomNodes(seed).Run();
  }
}

}  // namespace
}  // namespace taskd::manager
