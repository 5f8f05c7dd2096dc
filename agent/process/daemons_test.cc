#include "agent/process/daemons.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace taskd::process {
namespace {

using Variables = std::map<std::string, std::string>;

class MarkVariablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/taskd-mark-variables-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    library_ = folder_ + "/libtaskd.so";
    profiler_ = folder_ + "/libnccl-profiler-taskd.so";
    std::ofstream{profiler_};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string library_;
  std::string profiler_;
};

TEST_F(MarkVariablesTest, NothingIsSet) {
  EXPECT_EQ(
      MarkVariables(library_, {{"PATH", "/bin"}}),
      (Variables{{"LD_PRELOAD", library_}, {"NVTX_INJECTION64_PATH", library_}, {"NCCL_PROFILER_PLUGIN", profiler_}}));
}

TEST_F(MarkVariablesTest, NoLibrary) { EXPECT_EQ(MarkVariables("", {{"LD_PRELOAD", "/x.so"}}), Variables{}); }

TEST_F(MarkVariablesTest, NoProfilerBesideIt) {
  std::filesystem::remove(profiler_);
  EXPECT_FALSE(MarkVariables(library_, {}).contains("NCCL_PROFILER_PLUGIN"));
}

TEST_F(MarkVariablesTest, PreloadedBefore) {
  EXPECT_EQ(MarkVariables(library_, {{"LD_PRELOAD", "/x.so"}})["LD_PRELOAD"], "/x.so:" + library_);
  const std::string both = library_ + ":/x.so";
  EXPECT_EQ(MarkVariables(library_, {{"LD_PRELOAD", both}})["LD_PRELOAD"], both);
}

TEST_F(MarkVariablesTest, AnotherNvtxToolGetsEveryCallToo) {
  Variables added = MarkVariables(library_, {{"NVTX_INJECTION64_PATH", "/opt/tool.so"}});
  EXPECT_EQ(added["NVTX_INJECTION64_PATH"], library_);
  EXPECT_EQ(added["TASKD_NVTX_CHAIN"], "/opt/tool.so");
}

// A user who has set both has made the choice.
TEST_F(MarkVariablesTest, AnotherNvtxToolAndAChain) {
  Variables added =
      MarkVariables(library_, {{"NVTX_INJECTION64_PATH", "/opt/tool.so"}, {"TASKD_NVTX_CHAIN", "/opt/another.so"}});
  EXPECT_FALSE(added.contains("NVTX_INJECTION64_PATH"));
  EXPECT_FALSE(added.contains("TASKD_NVTX_CHAIN"));
}

TEST_F(MarkVariablesTest, TheChainAloneStays) {
  Variables added = MarkVariables(library_, {{"TASKD_NVTX_CHAIN", "/opt/another.so"}});
  EXPECT_EQ(added["NVTX_INJECTION64_PATH"], library_);
  EXPECT_FALSE(added.contains("TASKD_NVTX_CHAIN"));
}

// As a rank's own launcher has it: not a chain to ourselves.
TEST_F(MarkVariablesTest, AnotherCopyOfOurs) {
  Variables added = MarkVariables(library_, {{"NVTX_INJECTION64_PATH", "/site-packages/libtaskd.so"}});
  EXPECT_FALSE(added.contains("NVTX_INJECTION64_PATH"));
  EXPECT_FALSE(added.contains("TASKD_NVTX_CHAIN"));
}

TEST_F(MarkVariablesTest, NoNvtxToolIsWanted) {
  Variables added = MarkVariables(library_, {{"NVTX_INJECTION64_PATH", ""}});
  EXPECT_FALSE(added.contains("NVTX_INJECTION64_PATH"));
  EXPECT_FALSE(added.contains("TASKD_NVTX_CHAIN"));
}

TEST_F(MarkVariablesTest, NcclsProfilerIsTheUsersWhereItIsSet) {
  for (const char* value : {"none", "", "/opt/profiler.so"}) {
    EXPECT_FALSE(MarkVariables(library_, {{"NCCL_PROFILER_PLUGIN", value}}).contains("NCCL_PROFILER_PLUGIN")) << value;
  }
}

TEST(RestartPauseTest, GrowsAndBeginsAnewAfterASoundLife) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  RestartPause pause;
  for (int expected_ms : {500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000}) {
    EXPECT_EQ(pause.After(seconds(599)), milliseconds(expected_ms));
  }
  EXPECT_EQ(pause.After(seconds(600)), milliseconds(500));
  EXPECT_EQ(pause.After(seconds(1)), milliseconds(1000));
}

}  // namespace
}  // namespace taskd::process
