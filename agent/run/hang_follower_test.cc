#include "agent/run/hang_follower.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

using evidence::EncodeEvidence;
using evidence::Finding;
using evidence::NodeEvidence;
using ::taskd::testing::kHangLimit;
using ::taskd::testing::WaitFor;
using ::taskd::testing::WaitUntil;
using ::testing::ElementsAre;

// Whether a thread of this process waits for something.
bool Sleeps(pid_t thread) {
  std::string stat;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), stat);
  return stat.find(") S ") != std::string::npos;
}

// Nodes that answer as the test says.
class HangFollowerTest : public ::testing::Test {
 protected:
  void Start(int nodes, bool asks_ras = true) {
    follower_ = std::make_unique<HangFollower>(
        HangFollower::Options{.hang = 7, .idle_ms = 30'000, .nodes = nodes, .asks_ras = asks_ras},
        [this](const LookMessage& message) {
          std::lock_guard lock(mutex_);
          looks_.push_back(message);
          changed_.notify_all();
        },
        [this](const Finding& finding) {
          std::lock_guard lock(mutex_);
          findings_.push_back(finding);
          changed_.notify_all();
        });
  }
  // The newest look, once `is_it`.
  template <typename IsIt>
  LookMessage AwaitLook(IsIt is_it) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(WaitFor(changed_, lock, [&] { return !looks_.empty() && is_it(looks_.back()); }));
    return looks_.back();
  }
  LookMessage AwaitLook() {
    return AwaitLook([](const LookMessage&) { return true; });
  }
  std::vector<Finding> AwaitFindings(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(WaitFor(changed_, lock, [&] { return findings_.size() >= count; }));
    return findings_;
  }
  static std::string Ras(int first_rank, bool answered, const std::string& note = "") {
    NodeEvidence evidence;
    evidence.first_rank = first_rank;
    evidence.ras.emplace();
    evidence.ras->has_answered = answered;
    if (!note.empty()) evidence.ras->notes.push_back(note);
    if (answered) {
      evidence.ras->hang.emplace();
      evidence.ras->hang->origins = {3};
      evidence.ras->hang->text = "rank 3 never came";
    }
    return EncodeEvidence(evidence);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LookMessage> looks_;
  std::vector<Finding> findings_;
  std::unique_ptr<HangFollower> follower_;  // last: it calls back
};

TEST_F(HangFollowerTest, OneNodeAsksRasAndItsAnswerIsReportedOnce) {
  Start(4);
  const LookMessage first = AwaitLook();
  EXPECT_EQ(first.hang, 7);
  EXPECT_GE(first.idle_ms, 30'000);
  EXPECT_EQ(first.asks_ras, 0);
  follower_->OnEvidence(6, Ras(0, true));  // of another hang
  follower_->OnEvidence(7, Ras(0, true));
  follower_->AwaitRas(kHangLimit);
  AwaitLook([](const LookMessage& look) { return look.asks_ras == -1; });
  follower_->OnEvidence(7, Ras(0, true));
  follower_->OnEvidence(7, "");
  follower_->OnEvidence(7, "nonsense");
  NodeEvidence more;
  more.first_rank = 8;
  more.sources.push_back(
      {.path = "/tmp/r_8", .format = readers::SourceFormat::kFlightRecorder, .rank = 8, .records = 1, .note = ""});
  follower_->OnEvidence(7, EncodeEvidence(more));
  const std::vector<Finding> findings = AwaitFindings(2);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].hang->origins, ElementsAre(3));
  EXPECT_EQ(findings[1].sources.size(), 1u);
}

TEST_F(HangFollowerTest, AnotherNodeAsksWhereRasDoesNotAnswerThenNobody) {
  Start(8);
  for (int node = 0; node < 3; ++node) {
    AwaitLook([&](const LookMessage& look) { return look.asks_ras == node; });
    // What a node has said once it says again with what is new.
    follower_->OnEvidence(7, Ras(0, false));
    follower_->OnEvidence(7, Ras(8 * node, false, node == 1 ? "it does not answer in time" : ""));
  }
  AwaitLook([](const LookMessage& look) { return look.asks_ras == -1; });
  follower_->AwaitRas(kHangLimit);
  const std::vector<Finding> findings = AwaitFindings(1);
  ASSERT_EQ(findings.size(), 1u) << "one note, and nothing of those where nobody listens";
  EXPECT_THAT(findings[0].notes, ElementsAre("it does not answer in time"));
}

TEST_F(HangFollowerTest, AJobOfOneNodeIsOverAfterIt) {
  Start(1);
  AwaitLook();
  follower_->OnEvidence(7, Ras(0, false));
  AwaitLook([](const LookMessage& look) { return look.asks_ras == -1; });
  EXPECT_TRUE(findings_.empty());
}

TEST_F(HangFollowerTest, RasOffIsNotAsked) {
  Start(2, false);
  EXPECT_EQ(AwaitLook().asks_ras, -1);
  follower_->AwaitRas(kHangLimit);
}

TEST_F(HangFollowerTest, EndsWithoutAnAnswer) {
  Start(2);
  AwaitLook();
  std::atomic<pid_t> waiting{0};
  std::atomic<bool> over{false};
  std::thread waits([&] {
    waiting = gettid();
    follower_->AwaitRas(std::chrono::hours(1));  // its limit is no way out: only Stop() ends it
    over = true;
  });
  ASSERT_TRUE(WaitUntil([&] { return waiting != 0 && Sleeps(waiting); }));
  EXPECT_FALSE(over);
  follower_->Stop();
  if (!WaitUntil([&] { return over.load(); })) {
    ADD_FAILURE() << "it waits on after Stop()";
    std::_Exit(1);  // the thread cannot be ended
  }
  waits.join();
}

}  // namespace
}  // namespace taskd::run
