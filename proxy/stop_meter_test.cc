#include "proxy/stop_meter.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kMs = 1'000'000;

ProcessLook Runs(uint64_t cpu_ms) { return {false, cpu_ms * kMs}; }
ProcessLook Stopped(uint64_t cpu_ms) { return {true, cpu_ms * kMs}; }

TEST(StopMeterTest, ReadsALineOfStat) {
  const std::string tail = " 1 7 7 34816 7 4194304 120 0 0 0 150 30 0 0 20 0 9 0 12345 1000 20";
  const auto tick_ns = static_cast<uint64_t>(1'000'000'000 / sysconf(_SC_CLK_TCK));
  EXPECT_EQ(ParseProcessStat("7 (python3) S" + tail), (ProcessLook{false, 180 * tick_ns}));
  EXPECT_EQ(ParseProcessStat("7 (a) R (b) T" + tail + "\n"), (ProcessLook{true, 180 * tick_ns}));
  EXPECT_EQ(ParseProcessStat("7 (x) t" + tail)->stopped, true);
  for (const char* text : {"", "7 (x", "7 (x) S 1 2", "7 (x) S 1 7 7 0 7 0 0 0 0 0 a b"}) {
    EXPECT_EQ(ParseProcessStat(text), std::nullopt) << text;
  }
}

TEST(StopMeterTest, ReadsAProcessThatIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(ReadProcess(child)->stopped, true);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(ReadProcess(child), std::nullopt);
  EXPECT_EQ(ReadProcess(getpid())->stopped, false);
}

TEST(StopMeterTest, KnowsAFrozenCgroup) {
  const std::filesystem::path mounts = std::filesystem::path(::testing::TempDir()) / absl::StrCat("cgroups-", getpid());
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((mounts / name).parent_path());
    std::ofstream(mounts / name) << text;
  };
  write("job/two/cgroup.events", "populated 1\nfrozen 1\n");
  write("job/runs/cgroup.events", "populated 1\nfrozen 0\n");
  write("unified/hybrid/cgroup.events", "populated 1\nfrozen 1\n");
  write("freezer/one/freezer.state", "FROZEN\n");
  write("freezer/thaws/freezer.state", "THAWED\n");
  for (const auto& [cgroups, frozen] : {std::pair("0::/job/two\n", true),
                                        {"0::/job/runs\n", false},
                                        {"7:freezer:/thaws\n0::/hybrid\n", true},
                                        {"7:freezer:/one\n1:name=systemd:/job/two\n0::/\n", true},
                                        {"7:freezer:/thaws\n1:name=systemd:/job/two\n0::/job/runs\n", false},
                                        {"0::/job/../job/two\n", false},
                                        {"0::/gone\n", false},
                                        {"no line\n:\n", false},
                                        {"", false}}) {
    EXPECT_EQ(IsFrozen(cgroups, mounts), frozen) << cgroups;
  }
  std::filesystem::remove_all(mounts);
  EXPECT_NE(ReadCgroups(getpid()), "");
}

TEST(StopMeterTest, CountsWhatLiesBetweenTwoLooksAtAStoppedProcess) {
  StopMeter meter;
  EXPECT_TRUE(meter.IsDue(1000 * kMs));
  EXPECT_EQ(meter.Look(Runs(50), 1000 * kMs), 0u);
  EXPECT_FALSE(meter.IsDue(1100 * kMs));
  EXPECT_EQ(meter.Look(Runs(60), 1200 * kMs), 0u);
  EXPECT_EQ(meter.Look(Stopped(61), 1400 * kMs), 100 * kMs);
  EXPECT_EQ(meter.Look(Stopped(61), 1600 * kMs), 200 * kMs);
  EXPECT_EQ(meter.Look(Runs(61), 1800 * kMs), 100 * kMs);
  EXPECT_EQ(meter.Look(Runs(70), 2000 * kMs), 0u);
}

TEST(StopMeterTest, WhereTheWatcherDidNotRunTheProcessDidNotEitherUnlessItUsedTheCpu) {
  for (const auto& [used_ms, stopped_ms] : {std::pair(0, 10'000), std::pair(1300, 10'000), std::pair(4000, 0)}) {
    StopMeter meter;
    meter.Look(Runs(0), 1000 * kMs);
    meter.Look(Runs(200), 1200 * kMs);
    EXPECT_EQ(meter.Look(Runs(200 + static_cast<uint64_t>(used_ms)), 11'200 * kMs),
              static_cast<uint64_t>(stopped_ms) * kMs)
        << used_ms;
  }
}

TEST(StopMeterTest, AnotherProcessOrAClockThatGoesBackCountsNothing) {
  StopMeter meter;
  meter.Look(Stopped(500), 1000 * kMs);
  EXPECT_EQ(meter.Look(Stopped(10), 1200 * kMs), 0u);
  EXPECT_EQ(meter.Look(Stopped(10), 1100 * kMs), 0u);
}

}  // namespace
}  // namespace taskd::proxy
