#include "agent/run/worker_env.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "agent/run/torch_version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;

class WorkerEnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-worker-env-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    context_.environment = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/root"}, {"RANK", "99"}};
    context_.host = "node-3";
    context_.master_addr = "10.0.0.1";
    context_.master_port = 29500;
    context_.cookie = "c00kie";
  }
  void TearDown() override { fs::remove_all(folder_); }

  RunOptions Options(std::vector<std::string> arguments) {
    if (arguments.empty() || arguments.back().find("train") == std::string::npos) arguments.push_back("train.py");
    std::string help;
    absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, {}, &help);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : RunOptions();
  }
  std::vector<process::WorkerSpec> Build(const RunOptions& options) {
    absl::StatusOr<std::vector<process::WorkerSpec>> workers = BuildWorkers(options, assignment_, context_);
    EXPECT_TRUE(workers.ok()) << workers.status();
    return workers.ok() ? *workers : std::vector<process::WorkerSpec>();
  }
  std::vector<std::string> CommandOf(const std::vector<std::string>& arguments) {
    std::string help;
    absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, {}, &help);
    EXPECT_TRUE(options.ok()) << options.status();
    std::vector<process::WorkerSpec> workers = Build(*options);
    return workers.empty() ? std::vector<std::string>() : workers.back().argv;
  }

  std::string folder_;
  Assignment assignment_{.round = 4,
                         .restart_count = 2,
                         .group_rank = 1,
                         .group_world_size = 2,
                         .rank_base = 8,
                         .world_size = 16,
                         .role_rank_base = 4,
                         .role_world_size = 12,
                         .manager = "",
                         .secret = "",
                         .tier = "",
                         .hosts = {}};
  WorkerContext context_;
};

TEST_F(WorkerEnvTest, EveryVariableOfTorchrun) {
  RunOptions options = Options({"--nproc-per-node=8", "--role=trainer", "--rdzv-id=job/7", "--max-restarts=5"});
  std::vector<process::WorkerSpec> workers = Build(options);
  ASSERT_EQ(workers.size(), 8u);
  EXPECT_EQ(workers[3].local_rank, 3);
  EXPECT_EQ(workers[3].rank, 11);
  std::map<std::string, std::string> expected = {
      {"PATH", "/usr/bin:/bin"},
      {"HOME", "/root"},
      {"RANK", "11"},
      {"LOCAL_RANK", "3"},
      {"GROUP_RANK", "1"},
      {"ROLE_RANK", "7"},
      {"ROLE_NAME", "trainer"},
      {"LOCAL_WORLD_SIZE", "8"},
      {"WORLD_SIZE", "16"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_WORLD_SIZE", "12"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "5"},
      {"TORCHELASTIC_RUN_ID", "job/7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", ""},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"TASKD_RUN_COOKIE", "c00kie"},
  };
  EXPECT_EQ(workers[3].environment, expected);
}

// Ranks 0 and 2 are on a, as srun --distribution=cyclic has it.
TEST_F(WorkerEnvTest, ATaskIsARankOfANodeWithOthers) {
  RunOptions options = Options({"--nproc-per-node=1"});
  options.task = TaskPlace{.local_rank = 1, .local_world_size = 2, .nodes = 2};
  assignment_.group_rank = assignment_.rank_base = assignment_.role_rank_base = 3;
  assignment_.group_world_size = assignment_.world_size = assignment_.role_world_size = 4;
  assignment_.hosts = {"a", "b", "a", "b"};
  const std::vector<process::WorkerSpec> workers = Build(options);
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].rank, 3);
  EXPECT_EQ(workers[0].local_rank, 1);
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "3"},
                                                                      {"WORLD_SIZE", "4"},
                                                                      {"LOCAL_RANK", "1"},
                                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                                      {"GROUP_RANK", "1"},
                                                                      {"GROUP_WORLD_SIZE", "2"},
                                                                      {"ROLE_RANK", "3"},
                                                                      {"ROLE_WORLD_SIZE", "4"}}) {
    EXPECT_THAT(workers[0].environment, Contains(Pair(name, value)));
  }
  EXPECT_EQ(NodeOf(options, assignment_, 2), 0);
  EXPECT_EQ(NodeOf(options, assignment_, 1), 1);
}

// PyTorch 2 warns of the name that PyTorch 1 knows, on each rank; where nobody knows which it is, both are set.
TEST_F(WorkerEnvTest, TheNameThatPyTorchKnows) {
  const auto torch = [&](const char* packages, const std::string& version) {
    fs::create_directories(folder_ + "/venv/lib/" + packages + "/torch");
    std::ofstream(folder_ + "/venv/lib/" + packages + "/torch/version.py")
        << "from typing import Optional\n\n__version__ = '" << version << "'\ncuda: Optional[str] = '13.0'\n";
  };
  const auto is_old = [&] {
    context_.has_torch2 = HasTorch2(context_.environment);
    process::WorkerSpec worker = Build(Options({}))[0];
    EXPECT_THAT(worker.environment, Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")));
    return worker.environment.contains("NCCL_ASYNC_ERROR_HANDLING");
  };
  fs::create_directories(folder_ + "/venv/bin");
  std::ofstream(folder_ + "/venv/bin/python3") << "";
  context_.environment = {{"PATH", "/nowhere:" + folder_ + "/venv/bin:/usr/bin"}};
  EXPECT_TRUE(is_old());
  torch("python3.12/site-packages", "2.11.0+cu130");
  EXPECT_FALSE(is_old());
  context_.environment = {{"PATH", "/usr/bin"}, {"PYTHON_EXEC", folder_ + "/venv/bin/python3"}};
  EXPECT_FALSE(is_old());
  torch("python3.8/site-packages", "1.13.0a0+debian");
  EXPECT_TRUE(is_old());
  torch("python3.8/site-packages", "");
  EXPECT_FALSE(is_old());
}

TEST_F(WorkerEnvTest, WhatUsersSetStays) {
  context_.environment["OMP_NUM_THREADS"] = "6";
  context_.environment["NCCL_ASYNC_ERROR_HANDLING"] = "0";
  context_.environment["TASKD_RUN_COOKIE"] = "outer";
  context_.extra = {{"LD_PRELOAD", "/x.so"}, {"WORLD_SIZE", "1"}};
  process::WorkerSpec worker = Build(Options({"--nproc-per-node=2"}))[0];
  EXPECT_THAT(worker.environment, Contains(Pair("OMP_NUM_THREADS", "6")));
  EXPECT_THAT(worker.environment, Contains(Pair("NCCL_ASYNC_ERROR_HANDLING", "0")));
  EXPECT_THAT(worker.environment, Contains(Pair("TASKD_RUN_COOKIE", "outer,c00kie")));
  EXPECT_THAT(worker.environment, Contains(Pair("LD_PRELOAD", "/x.so")));
  EXPECT_THAT(worker.environment, Contains(Pair("WORLD_SIZE", "1")));
  context_.environment.erase("OMP_NUM_THREADS");
  EXPECT_THAT(Build(Options({}))[0].environment, Not(Contains(Key("OMP_NUM_THREADS"))));
}

TEST_F(WorkerEnvTest, Commands) {
  EXPECT_THAT(CommandOf({"train.py", "-x", "a b"}), ElementsAre("python3", "-u", "train.py", "-x", "a b"));
  EXPECT_THAT(CommandOf({"-m", "pkg.train", "1"}), ElementsAre("python3", "-u", "-m", "pkg.train", "1"));
  EXPECT_THAT(CommandOf({"--no-python", "./train", "1"}), ElementsAre("./train", "1"));
  EXPECT_THAT(CommandOf({"--", "sh", "-c", "x"}), ElementsAre("sh", "-c", "x"));
  EXPECT_THAT(CommandOf({"--run-path", "/x/train.py", "1"}),
              ElementsAre("python3", "-u", "-c", HasSubstr("runpy.run_path"), "/x/train.py", "1"));
  EXPECT_THAT(
      CommandOf({"--nproc-per-node=3", "train.py", "--dev=${local_rank}", "${local_rank}${local_rank}", "$x$$"}),
      ElementsAre("python3", "-u", "train.py", "--dev=2", "22", "$x$$"));
  context_.environment["PYTHON_EXEC"] = "/opt/python";
  EXPECT_THAT(CommandOf({"train.py"}), ElementsAre("/opt/python", "-u", "train.py"));
}

TEST_F(WorkerEnvTest, RunPathRunsTheScriptAsMain) {
  std::ofstream(folder_ + "/s.py") << "import sys\nprint(__name__, sys.argv[1:], __file__)\n";
  std::vector<std::string> argv = CommandOf({"--run-path", folder_ + "/s.py", "--flag"});
  std::string command = "/usr/bin/";
  for (const std::string& word : argv) command += "\"" + word + "\" ";
  FILE* output = popen(command.c_str(), "r");
  char line[512] = "";
  EXPECT_NE(fgets(line, sizeof(line), output), nullptr);
  pclose(output);
  EXPECT_EQ(line, "__main__ ['--flag'] " + folder_ + "/s.py\n");
}

TEST_F(WorkerEnvTest, LogsAsTorchrunLaysThemOut) {
  RunOptions options = Options(
      {"--log-dir", folder_ + "/new/logs", "--rdzv-id=job7", "--nproc-per-node=3", "-r", "0:1,1:3", "-t", "2:2"});
  absl::StatusOr<LogFolder> logs = CreateLogFolder(options, "");
  ASSERT_TRUE(logs.ok()) << logs.status();
  EXPECT_FALSE(logs->temporary);
  EXPECT_THAT(logs->path, MatchesRegex(folder_ + "/new/logs/job7_[A-Za-z0-9]+"));
  context_.logs = *logs;
  std::vector<process::WorkerSpec> workers = Build(options);
  const std::string attempt = logs->path + "/attempt_2/";
  EXPECT_EQ(workers[0].out.file, attempt + "0/stdout.log");
  EXPECT_FALSE(workers[0].out.console);
  EXPECT_EQ(workers[0].err.file, "");
  EXPECT_TRUE(workers[0].err.console);
  EXPECT_EQ(workers[0].err.prefix, "");
  EXPECT_EQ(workers[1].err.file, attempt + "1/stderr.log");
  EXPECT_FALSE(workers[1].err.console);
  EXPECT_EQ(workers[2].err.file, attempt + "2/stderr.log");
  EXPECT_TRUE(workers[2].err.console);
  EXPECT_EQ(workers[2].err.prefix, "[default${local_rank}]:");
  EXPECT_EQ(workers[2].out.prefix, "");
  EXPECT_EQ(workers[2].error_file, attempt + "2/error.json");
  EXPECT_EQ(workers[2].environment.at("TORCHELASTIC_ERROR_FILE"), attempt + "2/error.json");
  EXPECT_TRUE(fs::is_directory(attempt + "2"));
}

TEST_F(WorkerEnvTest, TheErrorFileOfAnEarlierRoundIsRemoved) {
  context_.logs = {folder_, false};
  process::WorkerSpec worker = Build(Options({}))[0];
  std::ofstream(worker.error_file) << "{}";
  Build(Options({}));
  EXPECT_FALSE(fs::exists(worker.error_file));
}

TEST_F(WorkerEnvTest, RunIdsDoNotEscape) {
  for (const char* id : {"../../x", "/abs", "..", ".", "a b\n\"c", ""}) {
    RunOptions options = Options({"--log-dir", folder_ + "/logs"});
    options.rdzv_id = id;
    absl::StatusOr<LogFolder> logs = CreateLogFolder(options, "");
    ASSERT_TRUE(logs.ok()) << logs.status();
    EXPECT_EQ(fs::path(logs->path).parent_path(), folder_ + "/logs") << id;
    EXPECT_TRUE(fs::is_directory(logs->path));
    EXPECT_THAT(fs::path(logs->path).filename().string(), MatchesRegex("[A-Za-z0-9_.-]+"));
  }
  RunOptions options = Options({"--log-dir", folder_ + "/logs"});
  options.rdzv_id = std::string(5000, 'x');
  EXPECT_TRUE(CreateLogFolder(options, "").ok());
}

TEST_F(WorkerEnvTest, AFolderThatCannotBeCreatedIsNamed) {
  std::ofstream(folder_ + "/file") << "x";
  RunOptions options = Options({"--log-dir", folder_ + "/file/logs"});
  absl::StatusOr<LogFolder> logs = CreateLogFolder(options, "");
  EXPECT_EQ(logs.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(logs.status().message()), HasSubstr(folder_ + "/file/logs"));
  EXPECT_FALSE(CreateLogFolder(Options({}), folder_ + "/none").ok());
}

TEST_F(WorkerEnvTest, TemporaryAndNoLogs) {
  absl::StatusOr<LogFolder> logs = CreateLogFolder(Options({}), folder_);
  ASSERT_TRUE(logs.ok());
  EXPECT_TRUE(logs->temporary);
  EXPECT_THAT(logs->path, MatchesRegex(folder_ + "/taskd_none_[A-Za-z0-9]+"));
  context_.logs = *logs;
  std::vector<process::WorkerSpec> workers = Build(Options({"--nproc-per-node=2"}));
  std::ofstream(workers[1].error_file) << "{}";
  RemoveEmptyFolders(*logs);
  EXPECT_TRUE(fs::exists(workers[1].error_file));
  EXPECT_FALSE(fs::exists(fs::path(workers[0].error_file).parent_path()));
  fs::remove(workers[1].error_file);
  RemoveEmptyFolders(*logs);
  EXPECT_FALSE(fs::exists(logs->path));

  RunOptions none = Options({"--log-dir=/dev/null", "-t", "1", "-r", "2"});
  logs = CreateLogFolder(none, folder_);
  ASSERT_TRUE(logs.ok());
  EXPECT_EQ(logs->path, "");
  context_.logs = *logs;
  process::WorkerSpec worker = Build(none)[0];
  EXPECT_EQ(worker.out.file, "");
  EXPECT_EQ(worker.out.prefix, "[default${local_rank}]:");
  EXPECT_EQ(worker.err.file, "");
  EXPECT_FALSE(worker.err.console);
}

TEST_F(WorkerEnvTest, FilterAndPrefix) {
  context_.logs = {folder_, false};
  context_.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] =
      "${role_name}|${local_rank}|${rank}|${node}|${group_rank}|${other} ";
  std::vector<process::WorkerSpec> workers =
      Build(Options({"--nproc-per-node=3", "-t", "1", "--local-ranks-filter=1"}));
  EXPECT_FALSE(workers[0].out.console);
  EXPECT_NE(workers[0].out.file, "");
  EXPECT_FALSE(workers[0].err.console);
  EXPECT_EQ(workers[0].err.file, "");
  EXPECT_TRUE(workers[1].out.console);
  EXPECT_TRUE(workers[1].err.console);
  EXPECT_EQ(workers[1].out.prefix, "default|${local_rank}|${rank}|node-3|1|${other} ");
}

TEST_F(WorkerEnvTest, CpusByLocalRank) {
  EXPECT_TRUE(Build(Options({"--nproc-per-node=2"}))[1].cpus.empty());
  context_.cpus = {{0, 1}, {}, {4}};
  std::vector<process::WorkerSpec> workers = Build(Options({"--nproc-per-node=3", "--virtual-local-rank"}));
  EXPECT_THAT(workers[0].cpus, ElementsAre(0, 1));
  EXPECT_TRUE(workers[1].cpus.empty());
  EXPECT_THAT(workers[2].cpus, ElementsAre(4));
  RunOptions task = Options({"--nproc-per-node=1"});
  task.task = TaskPlace{.local_rank = 2, .local_world_size = 3, .nodes = 1};
  EXPECT_THAT(Build(task)[0].cpus, ElementsAre(4));
}

TEST_F(WorkerEnvTest, VirtualLocalRank) {
  context_.environment["CUDA_VISIBLE_DEVICES"] = "4,GPU-x";
  std::vector<process::WorkerSpec> workers = Build(Options({"--virtual-local-rank", "--nproc-per-node=2"}));
  EXPECT_EQ(workers[1].local_rank, 1);
  EXPECT_EQ(workers[1].environment.at("LOCAL_RANK"), "0");
  EXPECT_EQ(workers[1].environment.at("RANK"), "9");
  EXPECT_EQ(workers[1].environment.at("CUDA_VISIBLE_DEVICES"), "GPU-x");
  EXPECT_EQ(workers[1].environment.at("ASCEND_RT_VISIBLE_DEVICES"), "1");
  absl::StatusOr<std::vector<process::WorkerSpec>> three =
      BuildWorkers(Options({"--virtual-local-rank", "--nproc-per-node=3"}), assignment_, context_);
  EXPECT_EQ(three.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(three.status().message()), HasSubstr("'4,GPU-x'"));
}

}  // namespace
}  // namespace taskd::run
