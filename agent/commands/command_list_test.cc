#include "agent/commands/command_list.h"

#include <map>

#include "agent/commands/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::commands {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CommandList, ReadsOptionsFromAHelpText) {
  const std::vector<ShownOption> options = ShownOptions(R"(What it does.

Size
  --nodes N|MIN:MAX      nodes of the job;
                         a range with --backend [1]
  -t, --tee STREAMS      into files
  --cpus X, --gpus X
                         numbers
  --switch[=true|false]  on or off
  Words and --no-option of the text.

Without effect
  --start-method spawn|fork, --logs-specs NAME,
  --filters LIST
)");
  std::string text;
  for (const ShownOption& option : options) {
    for (const std::string& name : option.names) text += name + " ";
    text += "(" + option.value + ") " + option.help + "\n";
  }
  EXPECT_EQ(text,
            "--nodes (N|MIN:MAX) nodes of the job; a range with --backend [1]\n"
            "-t --tee (STREAMS) into files\n"
            "--cpus (X) numbers\n"
            "--gpus (X) numbers\n"
            "--switch ([=true|false]) on or off\n"
            "--start-method (spawn|fork) without effect\n"
            "--logs-specs (NAME) without effect\n"
            "--filters (LIST) without effect\n");
}

TEST(CommandList, ChoicesAreTheLowerCaseWordsOfAValue) {
  EXPECT_THAT(ChoicesOf("static|c10d|parallel"), ElementsAre("static", "c10d", "parallel"));
  EXPECT_THAT(ChoicesOf("HOST:PORT|off"), ElementsAre("off"));
  EXPECT_THAT(ChoicesOf("[=true|false]"), ElementsAre("true", "false"));
  EXPECT_THAT(ChoicesOf("N"), IsEmpty());
  EXPECT_THAT(ChoicesOf("off"), IsEmpty()) << "a value's name";
}

// `taskd run --help` explains each option that the program knows.
TEST(CommandList, EveryOptionOfRunHasItsHelp) {
  const CommandEntry entry{"run", "help", nullptr, RunRunCommand, RunHelps};
  const ListedCommand listed[] = {{&entry, nullptr}};
  const nlohmann::json list = nlohmann::json::parse(CommandList(listed));
  EXPECT_EQ(list["schema"], 1);
  std::map<std::string, nlohmann::json> options;
  for (const nlohmann::json& option : list["commands"][0]["options"]) {
    EXPECT_NE(option["help"], "") << option.dump();
    EXPECT_NE(option.value("value", ""), "VALUE") << option.dump();
    options[option["names"].back()] = option;
  }
  EXPECT_EQ(options["--hang-action"]["choices"], (nlohmann::json{"report", "restart", "stop"}));
  EXPECT_EQ(options["--nnodes"]["environment"], (nlohmann::json{"PET_NNODES", "TASKD_NNODES"}));
  EXPECT_EQ(options["--module"]["names"], (nlohmann::json{"-m", "--module"}));
  EXPECT_FALSE(options["--standalone"].contains("value"));
  EXPECT_EQ(options["--mode"]["choices"].size(), 10u);
  EXPECT_TRUE(options.contains("--remote-start"));
}

}  // namespace
}  // namespace taskd::commands
