#include "agent/run/rendezvous_setup.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace taskd::run {
namespace {

constexpr int64_t kS = 1'000'000'000;

int64_t Silence(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {}) {
  arguments.emplace_back("train.py");
  std::string help;
  absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, environment, &help);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? RendezvousOptions(*options, "").silence_ns : 0;
}

TEST(RendezvousSetupTest, HowLongANodeMayBeSilent) {
  EXPECT_EQ(Silence({"--nnodes=2"}), 60 * kS);
  EXPECT_EQ(Silence({"--nnodes=2", "--rdzv-backend=c10d"}), 60 * kS);
  EXPECT_EQ(Silence({"--nnodes=1:2", "--rdzv-backend=c10d"}), 15 * kS);
  for (const char* nodes : {"--nnodes=2", "--nnodes=1:2"}) {
    EXPECT_EQ(Silence({nodes, "--rdzv-backend=c10d", "--node-timeout=20"}), 20 * kS);
    EXPECT_EQ(Silence({nodes, "--rdzv-backend=c10d"}, {{"TASKD_NODE_TIMEOUT", "20"}}), 20 * kS);
  }
}

TEST(RendezvousSetupTest, TorchrunsKeepAlivesSayHowLong) {
  EXPECT_EQ(Silence({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-conf=keep_alive_interval=10"}), 30 * kS);
  EXPECT_EQ(Silence({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=keep_alive_max_attempt=8"}), 40 * kS);
  EXPECT_EQ(
      Silence({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=1"}),
      5 * kS);
  EXPECT_EQ(Silence({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-conf=keep_alive_interval=10", "--node-timeout=7"}),
            7 * kS);
}

}  // namespace
}  // namespace taskd::run
