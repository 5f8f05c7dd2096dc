// What a mode writes and reads on its node, and what a route plan changes in it.
#include "agent/modes/node_files.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/modes/route_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::modes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeFilesTest : public ::testing::Test {
 protected:
  NodeFilesTest() {
    char folder[] = "/tmp/node_files_test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~NodeFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Read(const std::string& path) const {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }

  // Node 2 of three.
  ModePlan Plan(Mode mode, std::vector<std::string> argv) const {
    ModePlan plan;
    plan.mode = mode;
    plan.index = 2;
    plan.nodes = {{"a", 1, false}, {"b", 1, false}, {"c", 1, false}};
    plan.processes = {{std::move(argv), {{"RANK", "2"}, {"MASTER_ADDR", "10.0.0.1"}}}};
    return plan;
  }
  absl::Status Apply(ModePlan* plan) const {
    return ApplyRoute(
        folder_, [](const std::string& name) { return "10.0.0." + std::to_string(name[0] - 'a' + 1); }, plan);
  }

  std::string folder_;
};

TEST_F(NodeFilesTest, FilesAreReplacedWhole) {
  const std::string path = folder_ + "/deep/er/hostfile";
  ASSERT_TRUE(WriteWholeFile(path, "a slots=1\n").ok());
  ASSERT_TRUE(WriteWholeFile(path, "b slots=2\n").ok());
  EXPECT_EQ(Read(path), "b slots=2\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/deep/er"), {}), 1);
}

TEST_F(NodeFilesTest, AFileThatCannotBeWrittenIsNamedAndStays) {
  Write("file", "old");
  const std::string below_a_file = folder_ + "/file/hostfile";
  EXPECT_THAT(std::string(WriteWholeFile(below_a_file, "x").message()), HasSubstr(below_a_file));
  EXPECT_EQ(Read(folder_ + "/file"), "old");
}

TEST_F(NodeFilesTest, TheTemplateOfSshdStays) {
  const std::string path = folder_ + "/sshd_config";
  Write("sshd_config", "Port {{MY_SSHD_PORT}}\n#{{MY_SSHD_PORT}}\n");
  for (int port : {36666, 40000}) {
    absl::StatusOr<std::string> filled = FillInSshdConfig(path, port);
    ASSERT_TRUE(filled.ok()) << filled.status();
    EXPECT_EQ(Read(*filled), "Port " + std::to_string(port) + "\n#" + std::to_string(port) + "\n");
  }
  EXPECT_THAT(Read(path), HasSubstr("{{MY_SSHD_PORT}}"));
  Write("filled", "Port 5\n");
  EXPECT_EQ(*FillInSshdConfig(folder_ + "/filled", 7), folder_ + "/filled");
  EXPECT_TRUE(absl::IsNotFound(FillInSshdConfig(folder_ + "/none", 7).status()));
}

TEST_F(NodeFilesTest, ThisNode) {
  EXPECT_TRUE(IsThisNode("localhost"));
  EXPECT_TRUE(IsThisNode("127.0.0.5"));
  EXPECT_FALSE(IsThisNode("192.0.2.1"));
  EXPECT_FALSE(IsThisNode("no-such-host.invalid"));
}

TEST_F(NodeFilesTest, ARouteRenumbersTorch) {
  Write("RANK_AFTER_ACC", "1\n");
  Write("MASTER_INDEX", "0\n");
  ModePlan plan = Plan(Mode::kTorch, {"train"});
  ASSERT_TRUE(Apply(&plan).ok());
  Environment& environment = plan.processes[0].environment;
  EXPECT_EQ(environment["RANK"], "1");
  EXPECT_EQ(environment["RANK_AFTER_ACC"], "1");
  EXPECT_EQ(environment["MA_MASTER_INDEX"], "0");
  EXPECT_EQ(environment["MASTER_ADDR"], "10.0.0.1");
}

TEST_F(NodeFilesTest, ARouteMovesTheMaster) {
  Write("RANK_AFTER_ACC", "0");
  Write("MASTER_INDEX", "2");
  ModePlan plan = Plan(Mode::kPytorchGpu, {"train", "--rank", "x", "--init_method", "tcp://10.0.0.1:5", "--rank", "2",
                                           "--world_size", "3"});
  ASSERT_TRUE(Apply(&plan).ok());
  EXPECT_THAT(plan.processes[0].argv, ElementsAre("train", "--rank", "x", "--init_method", "tcp://10.0.0.3:5", "--rank",
                                                  "0", "--world_size", "3"));
}

TEST_F(NodeFilesTest, ARouteOfAnotherJobIsRefused) {
  ModePlan plan = Plan(Mode::kTorch, {"train"});
  EXPECT_FALSE(Apply(&plan).ok());  // no files
  Write("RANK_AFTER_ACC", "3\n");
  Write("MASTER_INDEX", "0\n");
  EXPECT_THAT(std::string(Apply(&plan).message()), HasSubstr("3 nodes"));
  EXPECT_EQ(plan.processes[0].environment["RANK"], "2");
}

TEST_F(NodeFilesTest, WhoThisNodeIsInTheRankTable) {
  EXPECT_EQ(RouteSelf("x", {{"MA_CURRENT_IP", "1"}}), "x");
  EXPECT_EQ(RouteSelf("", {{"MA_CURRENT_IP", "1"}, {"MA_CURRENT_HOST_IP", "2"}}), "1");
  EXPECT_EQ(RouteSelf("", {{"MA_CURRENT_IP", ""}, {"MA_CURRENT_HOST_IP", "2"}, {"NAME", "3"}}), "2");
  EXPECT_EQ(RouteSelf("", {{"NAME", "pod-3"}}), "pod-3");
  EXPECT_FALSE(RouteSelf("", {}).empty());
}

}  // namespace
}  // namespace taskd::modes
