#include "agent/modes/plans/mode_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace taskd::modes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

ModeOptions Parsed(const Words& words, const Variables& environment = {}) {
  std::string help;
  const absl::StatusOr<ModeOptions> options = ParseModeOptions(words, environment, &help);
  EXPECT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(help, "");
  return options.ok() ? *options : ModeOptions();
}

std::string Error(const Words& words, const Variables& environment = {}) {
  std::string help;
  const absl::StatusOr<ModeOptions> options = ParseModeOptions(words, environment, &help);
  EXPECT_TRUE(absl::IsInvalidArgument(options.status())) << testing::PrintToString(words);
  EXPECT_EQ(help, "");
  return std::string(options.status().message());
}

TEST(AsksForMode, OnlyBeforeTheCommand) {
  const struct {
    Words words;
    bool asks;
  } cases[] = {
      {{}, false},
      {{"--mode", "torch", "--", "x"}, true},
      {{"--mode=torch", "x"}, true},
      {{"--mode"}, true},
      {{"--dry-run", "--mode", "torch"}, true},
      {{"--dry_run", "--wait-s", "3", "--wait_s=3", "--mode", "torch"}, true},
      {{"--manager", "h:1", "--mode", "torch"}, true},
      {{"--help", "--mode", "torch"}, true},
      {{"-h", "--mode", "torch"}, true},
      {{"--help"}, false},
      {{"train.py", "--mode", "x"}, false},
      {{"--", "x", "--mode", "x"}, false},
      {{"--manager", "--mode", "train.py"}, false},
      {{"--nnodes", "2", "train.py", "--mode", "x"}, false},
      {{"--nnodes=2", "--mode", "x"}, false},
      {{"-m", "module", "--mode", "x"}, false},
      {{"--standalone", "train.py"}, false},
      {{"--module", "x"}, false},
  };
  for (const auto& one : cases) EXPECT_EQ(AsksForMode(one.words), one.asks) << testing::PrintToString(one.words);
}

TEST(ModeOptions, Defaults) {
  const ModeOptions options = Parsed({"--mode", "auto", "--", "python3", "t.py", "--", "--mode", "x"});
  EXPECT_EQ(options.mode, "auto");
  EXPECT_FALSE(options.dry_run);
  EXPECT_FALSE(options.json);
  EXPECT_EQ(options.ledger, "");
  EXPECT_EQ(options.manager, "");
  EXPECT_EQ(options.wait_s, 300);
  EXPECT_EQ(options.node_timeout_s, 60);
  EXPECT_FALSE(options.ps_num.has_value());
  EXPECT_EQ(options.num_cpus, "");
  EXPECT_EQ(options.num_gpus, "");
  EXPECT_EQ(options.self, "");
  EXPECT_EQ(options.rdma, rdma::RdmaMode::kAuto);
  EXPECT_EQ(options.remote_start, RemoteStart::kAuto);
  EXPECT_FALSE(options.route);
  EXPECT_THAT(options.command, ElementsAre("python3", "t.py", "--", "--mode", "x"));
}

TEST(ModeOptions, AllOfThem) {
  const ModeOptions options = Parsed({"--mode=ray",     "--dry-run", "--json",       "--manager",  "[::1]:9601",
                                      "--wait_s",       "86400",     "--ps-num=3",   "--num-cpus", "0.7",
                                      "--num-gpus=0.2", "--self",    "10.0.0.1",     "--rdma=off", "--remote-start",
                                      "taskd",          "--route",   "--rank-table", "/t.json",    "--topology=/x=y",
                                      "--ledger",       "/l",        "train",        "--wait-s",   "x"});
  EXPECT_EQ(options.mode, "ray");
  EXPECT_TRUE(options.dry_run);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.ledger, "/l");
  EXPECT_EQ(options.manager, "[::1]:9601");
  EXPECT_EQ(options.wait_s, 86400);
  EXPECT_EQ(options.ps_num, 3);
  EXPECT_EQ(options.num_cpus, "0.7");
  EXPECT_EQ(options.num_gpus, "0.2");
  EXPECT_EQ(options.self, "10.0.0.1");
  EXPECT_EQ(options.rdma, rdma::RdmaMode::kOff);
  EXPECT_EQ(options.remote_start, RemoteStart::kTaskd);
  EXPECT_TRUE(options.route);
  EXPECT_EQ(options.rank_table, "/t.json");
  EXPECT_EQ(options.topology, "/x=y");
  EXPECT_THAT(options.command, ElementsAre("train", "--wait-s", "x"));
}

TEST(ModeOptions, EveryMode) {
  for (const char* mode : {"auto", "torch", "mpi", "horovod", "ray", "ps", "ascend", "pytorch-gpu", "tensorflow-gpu"}) {
    EXPECT_EQ(Parsed({"--mode", mode, "x"}).mode, mode);
  }
}

TEST(ModeOptions, TheLastOneCounts) { EXPECT_EQ(Parsed({"--mode", "ray", "--mode", "ps", "x"}).mode, "ps"); }

TEST(ModeOptions, TheEnvironmentStandsIn) {
  const Variables variables = {
      {"TASKD_WAIT_S", "7"},   {"TASKD_REMOTE_START", "ssh"}, {"TASKD_MANAGER", "m:1"},       {"TASKD_PS_NUM", "2"},
      {"TASKD_NUM_CPUS", "1"}, {"TASKD_NUM_GPUS", "2"},       {"TASKD_SELF", "me"},           {"TASKD_RDMA", "on"},
      {"TASKD_ROUTE", "True"}, {"TASKD_RANK_TABLE", "/r"},    {"TASKD_TOPOLOGY", "/t"},       {"TASKD_MODE", "ray"},
      {"TASKD_DRY_RUN", "1"},  {"TASKD_JSON", "1"},           {"TASKD_NODE_TIMEOUT", "90.5"}, {"TASKD_LEDGER", "l"}};
  ModeOptions options = Parsed({"--mode", "ps", "x"}, variables);
  EXPECT_EQ(options.mode, "ps");
  EXPECT_FALSE(options.dry_run);
  EXPECT_FALSE(options.json);
  EXPECT_EQ(options.wait_s, 7);
  EXPECT_EQ(options.node_timeout_s, 90.5);
  EXPECT_EQ(options.remote_start, RemoteStart::kSsh);
  EXPECT_EQ(options.ledger, std::filesystem::current_path() / "l");
  EXPECT_EQ(options.manager, "m:1");
  EXPECT_EQ(options.ps_num, 2);
  EXPECT_EQ(options.num_cpus, "1");
  EXPECT_EQ(options.num_gpus, "2");
  EXPECT_EQ(options.self, "me");
  EXPECT_EQ(options.rdma, rdma::RdmaMode::kOn);
  EXPECT_TRUE(options.route);
  EXPECT_EQ(options.rank_table, "/r");
  EXPECT_EQ(options.topology, "/t");
  options = Parsed({"--mode", "ps", "--wait-s", "9", "--rdma", "auto", "x"}, variables);
  EXPECT_EQ(options.wait_s, 9);
  EXPECT_EQ(options.rdma, rdma::RdmaMode::kAuto);
  options = Parsed({"--mode", "ps", "x"}, {{"TASKD_WAIT_S", ""}, {"TASKD_RANK_TABLE", "/r"}, {"TASKD_ROUTE", "0"}});
  EXPECT_EQ(options.wait_s, 300);
  EXPECT_FALSE(options.route);
  EXPECT_THAT(Error({"--mode", "ps", "x"}, {{"TASKD_WAIT_S", "z"}}), HasSubstr("TASKD_WAIT_S 'z'"));
  EXPECT_THAT(Error({"--mode", "ps", "x"}, {{"TASKD_ROUTE", "maybe"}}), HasSubstr("TASKD_ROUTE 'maybe'"));
  EXPECT_THAT(Error({"--mode", "ps", "x"}, {{"TASKD_MANAGER", "of"}}), HasSubstr("TASKD_MANAGER 'of'"));
  EXPECT_EQ(Parsed({"--mode", "slurm", "x"}, {{"TASKD_MANAGER", "off"}}).manager, "off");
}

TEST(ModeOptions, RefusesAllElse) {
  const struct {
    Words words;  // after --mode torch
    const char *what, *rule;
  } cases[] = {
      {{}, "CMD", "missing"},
      {{"--"}, "CMD", "missing"},
      {{"--dry-run"}, "CMD", "missing"},
      {{"--", ""}, "CMD ''", "empty"},
      {{"--mode", "x", "y"}, "--mode 'x'", "auto, torch"},
      {{"--mode=", "y"}, "--mode ''", "empty"},
      {{"--mode", "Torch", "y"}, "--mode 'Torch'", "auto, torch"},
      {{"--json", "x"}, "--json", "--dry-run"},
      {{"--dry-run=1", "x"}, "'--dry-run=1'", "no value"},
      {{"--nnodes", "2", "x"}, "'--nnodes'", "unknown"},
      {{"--nnodes=2", "x"}, "'--nnodes'", "unknown"},
      {{"-x", "x"}, "'-x'", "unknown"},
      {{"--m\nx", "x"}, "'--m?x'", "unknown"},
      {{"--manager"}, "--manager", "missing"},
      {{"--manager", "--dry-run", "x"}, "--manager", "missing"},
      {{"--manager", "--", "x"}, "--manager", "missing"},
      {{"--manager", "", "x"}, "--manager ''", "empty"},
      {{"--manager", "h", "x"}, "--manager 'h'", "HOST:PORT"},
      {{"--manager", "h:0", "x"}, "--manager 'h:0'", "1 to 65535"},
      {{"--manager", "h:65536", "x"}, "--manager 'h:65536'", "1 to 65535"},
      {{"--manager", "::1:5", "x"}, "--manager '::1:5'", "brackets"},
      {{"--wait-s", "0", "x"}, "--wait-s '0'", "at most 86400"},
      {{"--wait-s", "86401", "x"}, "--wait-s '86401'", "at most 86400"},
      {{"--wait-s", "-1", "x"}, "--wait-s '-1'", "at most 86400"},
      {{"--wait-s", "1s", "x"}, "--wait-s '1s'", "a number"},
      {{"--node-timeout", "4.9", "x"}, "--node-timeout '4.9'", "a number from 5 to 86400"},
      {{"--node-timeout", "86401", "x"}, "--node-timeout '86401'", "a number from 5 to 86400"},
      {{"--ps-num", "0", "x"}, "--ps-num '0'", "from 1"},
      {{"--ps-num", "-1", "x"}, "--ps-num '-1'", "from 1"},
      {{"--ps-num", "a", "x"}, "--ps-num 'a'", "integer"},
      {{"--num-cpus", "-1", "x"}, "--num-cpus '-1'", "number"},
      {{"--num-cpus", "inf", "x"}, "--num-cpus 'inf'", "number"},
      {{"--num-cpus", "1e400", "x"}, "--num-cpus '1e400'", "number"},
      {{"--num-cpus", "9999999", "x"}, "--num-cpus '9999999'", "number"},
      {{"--num-gpus", ".", "x"}, "--num-gpus '.'", "number"},
      {{"--num-gpus", "1.2.3", "x"}, "--num-gpus '1.2.3'", "number"},
      {{"--num-gpus", "nan", "x"}, "--num-gpus 'nan'", "number"},
      {{"--self", "", "x"}, "--self ''", "empty"},
      {{"--rdma", "yes", "x"}, "--rdma 'yes'", "auto, on or off"},
      {{"--remote-start", "rsh", "x"}, "--remote-start 'rsh'", "auto, ssh or taskd"},
      {{"--route", "x"}, "--route", "--rank-table"},
      {{"--route", "--rank-table", "r", "x"}, "--route", "--topology"},
      {{"--route", "--topology", "r", "x"}, "--route", "--rank-table"},
      {{"--topology", "t", "x"}, "--topology 't'", "--route"},
      {{"--rank-table", "t", "x"}, "--rank-table 't'", "--route"},
  };
  for (const auto& one : cases) {
    Words words = {"--mode", "torch"};
    words.insert(words.end(), one.words.begin(), one.words.end());
    const std::string error = Error(words);
    EXPECT_THAT(error, HasSubstr(one.what));
    EXPECT_THAT(error, HasSubstr(one.rule));
    EXPECT_EQ(error.find('\n'), error.npos) << error;
  }
  EXPECT_THAT(Error({"--mode"}), HasSubstr("--mode: its value is missing"));
  EXPECT_THAT(Error({"x"}), HasSubstr("--mode"));
}

TEST(ModeOptions, HelpWinsOverWhatIsMissing) {
  for (const Words& words : {Words{"--mode", "torch", "--help"}, Words{"--mode=x", "-h", "--nonsense"}}) {
    std::string help;
    EXPECT_TRUE(ParseModeOptions(words, {}, &help).ok());
    for (const char* part : {"--mode", "--manager", "--wait-s", "--ps-num", "--num-cpus", "--self", "--rdma",
                             "--remote-start", "--route", "--topology", "TASKD_MPI_FRONT", "Exit code"}) {
      EXPECT_THAT(help, HasSubstr(part));
    }
  }
  EXPECT_THAT(Parsed({"--mode", "torch", "x", "--help"}).command, ElementsAre("x", "--help"));
}

}  // namespace
}  // namespace taskd::modes
