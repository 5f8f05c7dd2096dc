#include "agent/process/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace taskd::process {
namespace {

TEST(NotIgnoredTest, WhatTheStarterIgnoresIsLeftOut) {
  const auto before = signal(SIGHUP, SIG_IGN);
  EXPECT_EQ(NotIgnored({SIGTERM, SIGHUP, SIGUSR1}), (std::vector<int>{SIGTERM, SIGUSR1}));
  signal(SIGHUP, SIG_DFL);
  EXPECT_EQ(NotIgnored({SIGTERM, SIGHUP}), (std::vector<int>{SIGTERM, SIGHUP}));
  signal(SIGHUP, before);
}

// The guard has to be forked after the signals were blocked.
class SignalWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto watch = SignalWatch::Create(&loop_, {SIGUSR1, SIGUSR2, SIGTERM}, [this](int signal) -> SignalWatch::IfAlone {
      ++received_[signal];
      if (passes_nothing_on_ && signal != SIGUSR2) return nullptr;
      return [this, signal] { ++alone_[signal]; };
    });
    ASSERT_TRUE(watch.ok()) << watch.status();
    watch_ = *std::move(watch);
    auto guard = Guard::Start(NewCookie());
    ASSERT_TRUE(guard.ok()) << guard.status();
    guard_ = *std::move(guard);
  }

  // Until all that has come so far is decided: what came before a signal that nobody else gets is decided before it.
  void Run() {
    const int before = alone_[SIGUSR2];
    kill(getpid(), SIGUSR2);
    for (int tries = 0; alone_[SIGUSR2] == before && tries < 600; ++tries) {
      loop_.RunAfter(SignalWatch::kOthersNs, [this] { loop_.Stop(); });
      loop_.Run();
    }
    EXPECT_EQ(alone_[SIGUSR2], before + 1);
    for (auto* counts : {&received_, &alone_}) counts->erase(SIGUSR2);
  }

  EventLoop loop_;
  std::unique_ptr<SignalWatch> watch_;
  std::unique_ptr<Guard> guard_;
  std::map<int, int> received_;
  std::map<int, int> alone_;
  bool passes_nothing_on_ = false;
};

TEST_F(SignalWatchTest, ComesToThisProcessAlone) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGTERM);  // another one than ours
  kill(getpid(), SIGUSR1);
  Run();
  EXPECT_EQ(received_, (std::map<int, int>{{SIGUSR1, 1}}));
  EXPECT_EQ(alone_, (std::map<int, int>{{SIGUSR1, 1}}));
}

TEST_F(SignalWatchTest, ComesToEveryProcess) {
  watch_->CompareWith(*guard_);
  kill(getpid(), SIGUSR1);
  kill(guard_->pid(), SIGUSR1);
  kill(guard_->pid(), SIGTERM);  // the other order
  kill(getpid(), SIGTERM);
  Run();
  EXPECT_EQ(received_, (std::map<int, int>{{SIGUSR1, 1}, {SIGTERM, 1}}));
  EXPECT_TRUE(alone_.empty());
}

TEST_F(SignalWatchTest, ComesToEveryProcessThoughTheGuardDoesNotRunForAWhile) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGSTOP);
  kill(getpid(), SIGUSR1);
  kill(guard_->pid(), SIGUSR1);
  loop_.RunAfter(5 * SignalWatch::kOthersNs, [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_TRUE(alone_.empty()) << "the guard has not answered";
  kill(guard_->pid(), SIGCONT);
  Run();
  EXPECT_EQ(received_, (std::map<int, int>{{SIGUSR1, 1}}));
  EXPECT_TRUE(alone_.empty());
}

TEST_F(SignalWatchTest, AGuardThatNeverAnswersIsNotWaitedFor) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGSTOP);
  kill(getpid(), SIGUSR1);
  Run();
  EXPECT_EQ(alone_, (std::map<int, int>{{SIGUSR1, 1}}));
  kill(guard_->pid(), SIGCONT);
}

TEST_F(SignalWatchTest, ComesToEveryProcessAndLaterToThisOne) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGUSR1);
  kill(getpid(), SIGUSR1);
  Run();
  loop_.RunAfter(2 * SignalWatch::kOthersNs, [this] { loop_.Stop(); });  // the guard may have got its signal just now
  loop_.Run();
  kill(getpid(), SIGUSR1);
  Run();
  EXPECT_EQ(received_[SIGUSR1], 2);
  EXPECT_EQ(alone_[SIGUSR1], 1);
}

TEST_F(SignalWatchTest, WithoutAGuard) {
  kill(getpid(), SIGUSR1);
  Run();
  EXPECT_EQ(alone_[SIGUSR1], 1);
}

TEST_F(SignalWatchTest, AGuardThatIsKilled) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGKILL);
  Run();
  kill(getpid(), SIGUSR1);
  Run();
  EXPECT_EQ(alone_[SIGUSR1], 1);
}

TEST_F(SignalWatchTest, NothingIsPassedOn) {
  passes_nothing_on_ = true;
  watch_->CompareWith(*guard_);
  kill(getpid(), SIGTERM);
  Run();
  EXPECT_EQ(received_[SIGTERM], 1);
}

}  // namespace
}  // namespace taskd::process
