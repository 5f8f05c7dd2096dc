#include "manager/page/census.h"

#include <gtest/gtest.h>

namespace taskd::manager {
namespace {

using State = SupervisionSnapshot::State;

TEST(JobStateNameTest, AJobThatStartsAgainHasNotEnded) {
  const auto name = [](State supervision, bool attached) {
    return std::string(JobStateName(supervision, diagnosis::JobState::kOk, attached, /*stepped=*/true));
  };
  EXPECT_EQ(name(State::kRunning, true), "running");
  EXPECT_EQ(name(State::kRestarting, false), "restarting");
  EXPECT_EQ(name(State::kRunning, false), "starting");
  EXPECT_EQ(name(State::kEnded, false), "ended");
  // Without a launcher that reports.
  EXPECT_EQ(name(State::kUnknown, true), "running");
  EXPECT_EQ(name(State::kUnknown, false), "ended");
}

}  // namespace
}  // namespace taskd::manager
