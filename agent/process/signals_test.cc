#include "agent/process/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace taskd::process {
namespace {

// The guard has to be forked after the signals were blocked.
class SignalWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto watch = SignalWatch::Create(&loop_, {SIGUSR1, SIGTERM}, [this](int signal) -> SignalWatch::IfAlone {
      ++received_[signal];
      if (passes_nothing_on_) return nullptr;
      return [this, signal] { ++alone_[signal]; };
    });
    ASSERT_TRUE(watch.ok()) << watch.status();
    watch_ = *std::move(watch);
    auto guard = Guard::Start(NewCookie());
    ASSERT_TRUE(guard.ok()) << guard.status();
    guard_ = *std::move(guard);
  }

  // Until whoever waits for the others' signals has given up.
  void Run() {
    loop_.RunAfter(5 * SignalWatch::kOthersNs, [this] { loop_.Stop(); });
    loop_.Run();
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

TEST_F(SignalWatchTest, ComesToEveryProcessAndLaterToThisOne) {
  watch_->CompareWith(*guard_);
  kill(guard_->pid(), SIGUSR1);
  kill(getpid(), SIGUSR1);
  Run();
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
