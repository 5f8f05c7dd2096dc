#include "manager/options.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/job_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::HasSubstr;

TEST(ResolveManagerOptionsTest, WrongOnesAreNamed) {
  auto message = [](auto set) {
    ManagerOptions options;
    set(options);
    absl::Status status = ResolveManagerOptions(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](ManagerOptions& o) { o.job = "nojob"; }), HasSubstr("--job"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.job = "ns/\xff"; }), HasSubstr("UTF-8"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.task_id = "\xff"; }), HasSubstr("UTF-8"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.task_id = "../x"; }), HasSubstr("--task-id"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.nodes = -1; }), HasSubstr("--nodes"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.procs_per_node = 5000; }), HasSubstr("--procs-per-node"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.nodes = o.procs_per_node = 4000; }), HasSubstr("ranks"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.listen = "nowhere"; }), HasSubstr("--listen"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.http = "x"; }), HasSubstr("--http"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.marks = "setp"; }), HasSubstr("--marks: 'setp' is not all, or a list"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.clusterd = "x:y"; }), HasSubstr("--clusterd"));
  EXPECT_THAT(message([](ManagerOptions& o) { o.listen = "0.0.0.0:1"; }), HasSubstr("--allow-plaintext"));
}

TEST(ResolveManagerOptionsTest, EnvironmentFillsWhatIsEmpty) {
  setenv("POD_IP", "10.1.2.3", 1);
  setenv("MINDX_SERVER_IP", "10.9.9.9", 1);
  ManagerOptions options;
  options.allow_plaintext = true;
  auto resolved = ResolveManagerOptions(options);
  unsetenv("POD_IP");
  unsetenv("MINDX_SERVER_IP");
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->listen, "10.1.2.3:9601");
  EXPECT_EQ(resolved->clusterd, "10.9.9.9:8899");
  EXPECT_EQ(resolved->state_dir, "");
  resolved = ResolveManagerOptions({});
  EXPECT_EQ(resolved->listen, "127.0.0.1:9601");
  EXPECT_EQ(resolved->clusterd, "");
}

TEST(ResolveManagerOptionsTest, EveryJobHasAName) {
  const auto name = [](const std::string& task_id, const std::string& default_job) {
    ManagerOptions options;
    options.task_id = task_id;
    options.default_job = default_job;
    const absl::StatusOr<ManagerOptions> resolved = ResolveManagerOptions(options);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(resolved->job, "");
    return resolved->default_job;
  };
  char host[HOST_NAME_MAX + 1] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_EQ(name("", ""), "default/" + std::string(host) + "-" + std::to_string(getpid()));
  EXPECT_EQ(name("4711", ""), "default/4711");
  EXPECT_EQ(name("4711", "slurm/train-4711"), "slurm/train-4711");
}

TEST(ResolveManagerOptionsTest, ThePlatformsIdNamesTheJob) {
  const auto resolve = [](const std::string& task_id) {
    ManagerOptions options;
    options.task_id = task_id;
    return *ResolveManagerOptions(options);
  };
  unsetenv("MINDX_TASK_ID");
  EXPECT_FALSE(resolve("").is_named);
  setenv("MINDX_TASK_ID", "0a1b-2c3d", 1);
  EXPECT_TRUE(resolve("").is_named);
  EXPECT_EQ(resolve("").default_job, "default/0a1b-2c3d");
  EXPECT_EQ(resolve("").ledger_task, "0a1b-2c3d");
  EXPECT_EQ(resolve("").task_id, "") << "a second manager under this id has a state of its own";
  EXPECT_EQ(resolve("4711").ledger_task, "4711");
  EXPECT_EQ(resolve("4711").default_job, "default/4711");
  setenv("MINDX_TASK_ID", "a/../b", 1);
  EXPECT_EQ(resolve("").default_job, "default/a-..-b");
  unsetenv("MINDX_TASK_ID");
}

TEST(ResolveManagerOptionsTest, EveryJobHasASecret) {
  auto secret = [](auto set) {
    ManagerOptions options;
    set(options);
    absl::StatusOr<ManagerOptions> resolved = ResolveManagerOptions(options);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved.ok() ? resolved->secret : "";
  };
  EXPECT_EQ(secret([](ManagerOptions& o) { o.token = "given"; }), "given");
  EXPECT_EQ(secret([](ManagerOptions& o) { o.tls_dir = "/tls"; }), "") << "the PKI takes its place";
  const std::string own = secret([](ManagerOptions&) {});
  EXPECT_EQ(own.size(), 64u);
  EXPECT_NE(own, secret([](ManagerOptions&) {}));
  // Reached from other machines, whose parts of the job know no more than its id.
  EXPECT_EQ(secret([](ManagerOptions& o) {
              o.listen = "0.0.0.0:1";
              o.allow_plaintext = true;
              o.task_id = "task";
            }),
            StandInSecret("task"));
  EXPECT_FALSE(IsStandIn(secret([](ManagerOptions& o) { o.task_id = "task"; })));
}

TEST(ResolveManagerOptionsTest, NoFaultsAndNoOrdersOnTheStrengthOfAStandIn) {
  const auto reports = [](const std::string& listen, const std::string& token) {
    ManagerOptions options;
    options.listen = listen;
    options.token = token;
    options.allow_plaintext = true;
    options.task_id = "task";
    options.clusterd = "127.0.0.1:1";
    options.report_fault = true;
    options.on_slow.on_slow = "order";
    options.on_slow.order_to = "command:/bin/true";
    absl::StatusOr<ManagerOptions> resolved = ResolveManagerOptions(options);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    if (!resolved.ok()) return false;
    EXPECT_EQ(resolved->policy.order_to.size(), resolved->report_fault ? 1u : 0u);
    EXPECT_EQ(resolved->policy.on_slow, resolved->report_fault ? policy::OnSlow::kOrder : policy::OnSlow::kRehearse);
    return resolved->report_fault;
  };
  EXPECT_FALSE(reports("0.0.0.0:1", ""));
  EXPECT_TRUE(reports("0.0.0.0:1", "given"));
  EXPECT_TRUE(reports("127.0.0.1:1", ""));
}

}  // namespace
}  // namespace taskd::manager
