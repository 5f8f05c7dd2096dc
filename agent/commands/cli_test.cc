// The program as users run it: flags, environment, exit codes, what goes to stdout and what to stderr.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"
#include "nlohmann/json.hpp"

namespace taskd::commands {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Result {
  int code = -1;
  std::string out, err;
};

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-cli-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Runs `[VARIABLE=x ...] taskd ARGUMENTS` through the shell.
  Result Run(const std::string& arguments, const std::string& environment = "") {
    const char* program = std::getenv("TASKD_BIN");
    EXPECT_NE(program, nullptr);
    std::string command = "env -u RANK -u MS_NODE_RANK -u POD_IP " + environment + " timeout " +
                          std::to_string(testing::kHangLimit.count()) + " " + program + " " + arguments + " >" +
                          (folder_ / "out").string() + " 2>" + (folder_ / "err").string() + " </dev/null";
    int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp("out"), Slurp("err")};
  }
  std::string Slurp(const char* name) {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  void ExpectWrongUsage(const std::string& arguments, const std::string& says, const std::string& environment = "") {
    Result result = Run(arguments, environment);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_THAT(result.err, HasSubstr(says)) << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  fs::path folder_;
};

TEST_F(CliTest, HelpOfACommand) {
  EXPECT_THAT(Run("help run").out, HasSubstr("--nproc-per-node"));
  EXPECT_THAT(Run("help rdma check").out, HasSubstr("Usage: taskd rdma check"));
  const std::string all = Run("help").out;
  EXPECT_EQ(all, Run("--help").out);
  EXPECT_LT(all.find("  run "), all.find("  rdma "));
  EXPECT_THAT(Run("trace --help").out, HasSubstr("Env:TASKD_OUTPUT"));
}

TEST_F(CliTest, WrongUsageIsOneLineAndTwo) {
  ExpectWrongUsage("", "usage: taskd");
  ExpectWrongUsage("mangaer", "'mangaer' is no command: did you mean 'manager'?");
  ExpectWrongUsage("x", "'x' is no command: taskd --help lists them");
  ExpectWrongUsage("rdma chek", "taskd rdma: 'chek' is no command: did you mean 'check'?");
  ExpectWrongUsage("rdma", "taskd rdma: a command is needed: env or check");
  ExpectWrongUsage("diagnose --wacth", "unknown option '--wacth': did you mean --watch?");
  ExpectWrongUsage("diagnose --from", "--from: a value is missing (a task's folder of mark files");
  ExpectWrongUsage("--vesion", "taskd: '--vesion' is no command: did you mean '--version'?");
  ExpectWrongUsage("diagnose --why --job x", "--why: a value is missing (a rank: ");
  ExpectWrongUsage("diagnose --job --why", "--job: a value is missing (");
  ExpectWrongUsage("diagnose --why x", "--why: 'x' is not a whole number");
  ExpectWrongUsage("diagnose --why 131072", "--why: '131072' is not 0 to 131071");
  ExpectWrongUsage("diagnose --wait ten", "--wait: 'ten' is not a number");
  ExpectWrongUsage("diagnose --json=maybe", "--json: 'maybe' is not true or false");
  ExpectWrongUsage("simulate --steps 0", "--steps: '0' is not above 0");
  ExpectWrongUsage("goodput --incidents 1.5", "--incidents: '1.5' is not a whole number");
  ExpectWrongUsage("act why x", "node: 'x' is not a whole number");
  ExpectWrongUsage("run --nnods 2 x.py", "unknown option '--nnods': did you mean --nnodes?");
  ExpectWrongUsage("--jobs", "'--jobs'");
  ExpectWrongUsage("manager --bogus", "--bogus");
  ExpectWrongUsage("manager --bogus=1", "--bogus=1");
  ExpectWrongUsage("manager stray", "stray");
  ExpectWrongUsage("manager --nodes many", "many");
  ExpectWrongUsage("manager --nodes=-1", "-1");
  ExpectWrongUsage("manager", "70000", "TASKD_NODES=70000");
  ExpectWrongUsage("manager --job name", "name");
  ExpectWrongUsage("manager --listen 9601", "9601");
  ExpectWrongUsage("manager --listen 0.0.0.0:0", "--allow-plaintext");
  ExpectWrongUsage("manager --listen 127.0.0.1:0 --http 127.0.0.1:0 --tls-dir /nowhere", "/nowhere/ca.crt");
  ExpectWrongUsage("manager --state-dir", "--state-dir");
  ExpectWrongUsage("proxy --node-rank x", "x");
  ExpectWrongUsage("proxy", "abc", "RANK=abc");
  ExpectWrongUsage("proxy --disk-limit-mb=-5", "-5");
  ExpectWrongUsage("switch", "KIND=on");
  ExpectWrongUsage("switch step", "'step'");
  ExpectWrongUsage("switch step=ON", "step=ON");
  ExpectWrongUsage("switch steps=on", "'steps'");
  ExpectWrongUsage("switch all=On", "'all=On' is not KIND=on or KIND=off; did you mean all=on?");
  ExpectWrongUsage("switch comm=off", "communication or all; did you mean communication=off?");
  ExpectWrongUsage("switch step=on --timeout 0", "--timeout");
  ExpectWrongUsage("switch step=on --manager host", "host");
  ExpectWrongUsage("status --manager host:99999", "99999");
  ExpectWrongUsage("status stray", "stray");
}

TEST_F(CliTest, HelpAndVersion) {
  EXPECT_EQ(Run("--version").out, "taskd " TASKD_VERSION "\n");
  for (const char* command : {"", "manager", "proxy", "switch", "status"}) {
    Result result = Run(std::string(command) + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out.find("TOKEN"), std::string::npos) << "the token is no flag";
  }
}

TEST_F(CliTest, AManagerThatIsNotThereIsOneLineAndOne) {
  for (const char* command : {"switch all=on", "status", "status --watch", "status --json"}) {
    Result result = Run(command, "TASKD_MANAGER=127.0.0.1:1");
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1 cannot be reached"));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(CliTest, AnAddressInUseIsOneLineAndOne) {
  manager::ManagerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = options.switch_file = "";
  options.secret = "secret";
  auto server = manager::ManagerServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  std::string address = "127.0.0.1:" + std::to_string((*server)->port());
  Result result = Run("manager --listen " + address + " --http 127.0.0.1:0");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "taskd manager: --listen: cannot listen on " + address + ": Address already in use\n");
  result = Run("manager --listen " + address + " --http 127.0.0.1:0", "TASKD_STARTED_BY=run");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "") << "the launcher says it";
}

// interfaces of `taskd switch --json` and `taskd status --json`: keys and their order.
TEST_F(CliTest, SwitchAndStatusOfARunningManager) {
  manager::ManagerOptions options;
  options.job = "ns/job";
  options.task_id = "task-1";
  options.listen = "127.0.0.1:0";
  options.nodes = 2;
  options.procs_per_node = 1;
  options.state_dir = folder_ / "state";
  options.http = options.switch_file = "";
  options.token = options.secret = "secret";
  auto server = manager::ManagerServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  std::string env = "TASKD_TOKEN=secret TASKD_MANAGER=127.0.0.1:" + std::to_string((*server)->port());
  auto channel = manager::Dial((*server)->port(), "secret");
  auto node0 = std::make_unique<manager::TestProxy>(channel, 0, std::vector<int>{0});
  ASSERT_TRUE(node0->WaitForWanted(0));
  ASSERT_TRUE(
      testing::WaitUntil([&] { return Run("status --json", env).out.find("\"pid\":1000") != std::string::npos; }));

  Result result = Run("switch --job ns/job --json step=on communication=off", env);
  EXPECT_EQ(result.code, 1) << "rank 1 is missing";
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              StartsWith(R"({"job":"ns/job","wanted":{"step":"on","fp":"off","dataloader":"off",)"
                         R"("save_checkpoint":"off","communication":"off"},"total":2,"applied":1,"kept":false,)"
                         R"("ranks":[{"rank":0,"node":0,"state":"applied","ms":)"));
  EXPECT_THAT(result.out,
              HasSubstr(R"({"rank":1,"node":1,"state":"unreachable","ms":0.0,"reason":"never attached"}]})"));
  EXPECT_EQ(nlohmann::json::parse(result.out).dump().empty(), false);

  manager::TestProxy node1(channel, 1, {1});
  ASSERT_TRUE(
      testing::WaitUntil([&] { return Run("status --json", env).out.find("\"pid\":1001") != std::string::npos; }));
  result = Run("switch all=on", env);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("2 of 2 ranks applied it"));

  result = Run("status --json", env);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out,
              StartsWith(R"({"schema":1,"job":"ns/job","task_id":"task-1","wanted":{"step":"on","fp":"on",)"));
  EXPECT_THAT(
      result.out,
      HasSubstr(
          R"("nodes":[{"node":0,"host":"host0","pod":"","node_name":"","node_name_refusal":"the scheduler's name of the node is )"
          R"x(not known: TASKD_NODE_NAME is not set (in a pod, from spec.nodeName)","connected":true,"silent_s":0,)x"
          R"("ranks":[{"rank":0,"pid":1000,"attached":true,)"
          R"("applied":{"step":"off","fp":"off","dataloader":"off","save_checkpoint":"off",)"
          R"("communication":"off"},"step":17,"step_ms":0.0,"marks":{"step":1,"fp":0,"dataloader":0,)"
          R"("save_checkpoint":0,"communication":0,"other":0},"lost":0,"overhead_ns_per_mark":0.0}]})"));
  EXPECT_THAT(Run("status", env).out, HasSubstr("ranks: 2 attached of 2 known, 2 expected"));

  // The flag wins over the variable; another job and a wrong token are refused.
  EXPECT_EQ(Run("status --manager 127.0.0.1:1", env).code, 1);
  EXPECT_THAT(Run("switch --job ns/other step=on", env).err, HasSubstr("ns/other"));
  result = Run("switch step=off", env + " TASKD_TOKEN=wrong");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("TASKD_TOKEN is not the same"));
}

}  // namespace
}  // namespace taskd::commands
