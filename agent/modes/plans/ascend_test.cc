#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/modes/plans/mode_plan.h"
#include "agent/modes/plans/platform_modes.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Device ids are not in order; the second server's ranks come first.
constexpr const char* kTable = R"({"version":"1.0","status":"completed","server_count":"2","server_list":[
 {"server_id":"s0","host_ip":"10.0.0.1","container_ip":"172.0.0.1","pod_name":"vj-worker-0","device":[
   {"device_id":"5","device_ip":"192.168.1.8","rank_id":"2"},{"device_id":"3","device_ip":"192.168.1.9","rank_id":"3"}]},
 {"server_id":"s1","host_ip":"10.0.0.2","container_ip":"172.0.0.2","pod_name":"vj-worker-1","device":[
   {"device_id":"0","device_ip":"192.168.2.8","rank_id":"0"},{"device_id":"1","device_ip":"192.168.2.9","rank_id":"1"}]}]})";

constexpr const char* kOneServer = R"({"version":"1.0","status":"completed","server_list":[
 {"server_id":"s0","device":[{"device_id":"0","rank_id":"0"}]}]})";

constexpr const char* kStandard = R"({"status":"completed","group_count":"1","group_list":[
 {"group_name":"worker","device_count":"4","instance_count":"2","instance_list":[
  {"pod_name":"job-worker-1","server_id":"10.0.0.2","devices":[{"device_id":"1","device_ip":"192.168.101.101"},
                                                               {"device_id":"0","device_ip":"192.168.100.101"}]},
  {"pod_name":"job-worker-0","server_id":"10.0.0.1","devices":[{"device_id":"6","device_ip":"192.168.100.102"},
                                                               {"device_id":"7","device_ip":"192.168.101.102"}]}]}]})";

constexpr const char* k1_2 = R"({"version":"1.2","status":"completed","server_count":"1","server_list":[
 {"server_id":"s0","device":[{"device_id":"0","rank_id":"0","super_device_id":"4"},
                             {"device_id":"1","rank_id":"1","super_device_id":"5"}]}],
 "super_pod_list":[{"super_pod_id":"0","server_list":[{"server_id":"s0"}]}]})";

constexpr const char* k1_1 = R"({"version":"1.1","status":"completed","collective_id":"c","node_list":[
 {"node_addr":"10.0.0.1","ranks":[{"rank_id":"0","device_id":"0","port":"9527","rank_ip":"10.0.0.1"}]}]})";

std::string Rank2_0(int rank, int local, const std::string& address) {
  return fmt::format(
      R"({{"rank_id":{},"local_id":{},"device_id":{},"level_list":[{{"net_layer":1,"net_instance_id":"a","net_type":"CLOS","net_attr":"","rank_addr_list":[{{"addr_type":"IPV4","addr":"{}","ports":["1/1"],"plane_id":"0"}}]}}]}})",
      rank, local, local, address);
}

// Two nodes, of two devices and one.
std::string Table2_0() {
  return R"({"version":"2.0","status":"completed","rank_count":3,"rank_list":[)" + Rank2_0(0, 0, "10.1.0.1") + "," +
         Rank2_0(1, 1, "fd00::0:1") + "," + Rank2_0(2, 0, "10.1.0.3") + "]}";
}

constexpr const char* kEmpty = "an empty file";

using Planner = absl::StatusOr<ModePlan> (*)(const ModeOptions&, const Environment&, const ModeMachine&);

// The mode's own planning, without what PlanMode makes of it.
absl::StatusOr<ModePlan> AscendAlone(const ModeOptions& options, const Environment& environment,
                                     const ModeMachine& machine) {
  ModePlan plan;
  if (absl::Status status = PlanAscend({options, environment, machine}, &plan); !status.ok()) return status;
  return plan;
}

absl::StatusOr<ModePlan> Plan(const Environment& variables, const std::string& table = kTable,
                              const std::string& self = "", const std::string& path = "/t.json",
                              Planner planner = PlanMode) {
  Environment environment = {{"RANK_TABLE_FILE", path}};
  for (const auto& [name, value] : variables) environment[name] = value;
  ModeMachine machine;
  machine.ipv4 = [](const std::string&) { return ""; };
  machine.gpus = [] { return -1; };
  machine.read_file = [&](const std::string& asked) -> absl::StatusOr<std::string> {
    EXPECT_EQ(asked, path);
    if (table.empty()) return absl::NotFoundError(asked + ": there is no such file");
    return table == kEmpty ? "" : table;
  };
  ModeOptions options;
  options.mode = "ascend";
  options.self = self;
  options.command = {"python", "boot.py"};
  return planner(options, environment, machine);
}

// RANK_ID of each process, "?" if its ASCEND_DEVICE_ID is not its place.
std::vector<std::string> Ranks(const ModePlan& plan) {
  std::vector<std::string> ranks;
  for (size_t i = 0; i < plan.processes.size(); ++i) {
    const Environment& environment = plan.processes[i].environment;
    ranks.push_back(environment.at("ASCEND_DEVICE_ID") == std::to_string(i) ? environment.at("RANK_ID") : "?");
  }
  return ranks;
}

TEST(Ascend, AProcessForEachOwnDeviceByDeviceId) {
  const auto plan = Plan({{"MA_CURRENT_IP", "10.0.0.1"}, {"MA_NUM_GPUS", "2"}, {"RANK_ID", "9"}, {"LANG", "C"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Ranks(*plan), ElementsAre("3", "2"));
  for (const ModeProcess& process : plan->processes) {
    EXPECT_THAT(process.argv, ElementsAre("python", "boot.py"));
    EXPECT_THAT(process.environment, Contains(Pair("RANK_TABLE_FILE", "/t.json")));
    EXPECT_THAT(process.environment, Contains(Pair("RANK_SIZE", "4")));
    EXPECT_THAT(process.environment, Contains(Pair("MA_CURRENT_IP", "10.0.0.1")));
    EXPECT_EQ(process.environment.count("LANG"), 0u);
  }
  EXPECT_EQ(plan->role, "worker");
  EXPECT_EQ(plan->platform, Platform::kModelArts);
  EXPECT_EQ(plan->index, 0);
  EXPECT_FALSE(plan->serves);
  EXPECT_EQ(plan->start, StartRule::kAtOnce);
  EXPECT_THAT(plan->warnings, IsEmpty());
}

TEST(Ascend, EveryVersionAndNameOfTheServer) {
  const std::string table_2_0 = Table2_0();
  const struct {
    std::string table, self;
    std::vector<std::string> ranks;
    const char* size;
  } cases[] = {
      {kTable, "s1", {"0", "1"}, "4"},          {kTable, "10.0.0.2", {"0", "1"}, "4"},
      {kTable, "172.0.0.2", {"0", "1"}, "4"},   {kTable, "vj-worker-1", {"0", "1"}, "4"},
      {kStandard, "10.0.0.2", {"0", "1"}, "4"}, {kStandard, "job-worker-0", {"2", "3"}, "4"},
      {kOneServer, "s0", {"0"}, "1"},           {k1_2, "s0", {"0", "1"}, "2"},
      {table_2_0, "node0", {"0", "1"}, "3"},    {table_2_0, "node1", {"2"}, "3"},
      {table_2_0, "10.1.0.1", {"0", "1"}, "3"}, {table_2_0, "10.1.0.3", {"2"}, "3"},
      {table_2_0, "fd00::1", {"0", "1"}, "3"},
  };
  for (const auto& one : cases) {
    for (const bool by_option : {true, false}) {
      const auto plan = by_option ? Plan({{"MA_CURRENT_IP", "elsewhere"}}, one.table, one.self)
                                  : Plan({{"MA_CURRENT_IP", one.self}}, one.table);
      ASSERT_TRUE(plan.ok()) << plan.status() << one.self;
      EXPECT_EQ(Ranks(*plan), one.ranks) << one.self;
      EXPECT_THAT(plan->processes[0].environment, Contains(Pair("RANK_SIZE", one.size)));
    }
  }
}

TEST(Ascend, OneServerNeedsNoName) {
  const auto plan = Plan({}, kOneServer);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->processes, SizeIs(1));
  EXPECT_EQ(plan->platform, Platform::kNone);
  EXPECT_EQ(plan->manager, "");
}

TEST(Ascend, NodesAreTheTablesServers) {
  for (const char* hosts : {"", "3"}) {
    const auto plan = Plan({{"MA_CURRENT_IP", "10.0.0.2"}, {"MA_NUM_HOSTS", hosts}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_THAT(plan->nodes, SizeIs(2));
    EXPECT_EQ(plan->nodes[0].name, "172.0.0.1");
    EXPECT_EQ(plan->nodes[1].name, "172.0.0.2");
    EXPECT_EQ(plan->nodes[1].cards, 2);
    EXPECT_EQ(plan->index, 1);
    EXPECT_EQ(plan->manager, "172.0.0.1:9601");
    EXPECT_THAT(plan->warnings, SizeIs(*hosts == '\0' ? 0 : 1));
  }
}

TEST(Ascend, NodesAreModelArtsOwnWhereItTellsThem) {
  // In the table the servers stand in another order than the nodes.
  const auto plan = Plan({{"MA_NUM_HOSTS", "2"},
                          {"MA_TASK_INDEX", "0"},
                          {"MA_VJ_NAME", "vj"},
                          {"MA_TASK_NAME", "worker"},
                          {"MA_CURRENT_IP", "10.0.0.1"}},
                         kStandard);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->nodes, SizeIs(2));
  EXPECT_EQ(plan->nodes[0].name, "vj-worker-0.vj");
  EXPECT_EQ(plan->nodes[1].name, "vj-worker-1.vj");
  EXPECT_EQ(plan->index, 0);
  EXPECT_THAT(Ranks(*plan), ElementsAre("2", "3"));
}

TEST(Ascend, IndexTellsTheServerWhere2_0DoesNot) {
  for (const char* ip : {"", "10.9.9.9"}) {
    const auto plan = Plan({{"MA_NUM_HOSTS", "2"}, {"MA_TASK_INDEX", "1"}, {"MA_CURRENT_IP", ip}}, Table2_0());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(Ranks(*plan), ElementsAre("2"));
    EXPECT_THAT(plan->warnings, ElementsAre(HasSubstr("MA_TASK_INDEX")));
  }
  EXPECT_FALSE(Plan({{"MA_NUM_HOSTS", "2"}, {"MA_TASK_INDEX", "1"}}, Table2_0(), "node2").ok());
}

TEST(Ascend, RefusesWithVariableValueAndRule) {
  std::string bad_rank = kTable;
  bad_rank.replace(bad_rank.find(R"("rank_id":"2")"), 13, R"("rank_id":"7")");
  const struct {
    Environment variables;
    std::string table, self, path;
    std::vector<std::string> words;
  } cases[] = {
      {{}, kTable, "s0", "", {"RANK_TABLE_FILE", "not set"}},
      {{}, kTable, "s0", "/t.txt", {"RANK_TABLE_FILE", "'/t.txt'", ".json"}},
      {{}, "{\"version\"", "s0", "/t.json", {"RANK_TABLE_FILE", "'/t.json'"}},
      {{}, bad_rank, "s0", "/t.json", {"RANK_TABLE_FILE", "'/t.json'", "server_list[0].device[0].rank_id", "7"}},
      {{}, R"({"version":"9","status":"completed"})", "s0", "/t.json", {"RANK_TABLE_FILE", "version", "'9'"}},
      {{}, R"({"version":"1.0","status":"failed"})", "s0", "/t.json", {"RANK_TABLE_FILE", "status", "'failed'"}},
      {{}, k1_1, "10.0.0.1", "/t.json", {"RANK_TABLE_FILE", "1.1", "heterogeneous"}},
      {{}, kTable, "s9", "/t.json", {"--self", "'s9'"}},
      {{{"MA_CURRENT_IP", "10.0.0.9"}}, kTable, "", "/t.json", {"MA_CURRENT_IP", "'10.0.0.9'"}},
      {{{"MA_CURRENT_IP", "10.0.0.9"}}, kOneServer, "", "/t.json", {"MA_CURRENT_IP", "'10.0.0.9'"}},
      {{{"MA_CURRENT_IP", "10.1.0.9"}}, Table2_0(), "", "/t.json", {"MA_CURRENT_IP", "'10.1.0.9'"}},
      {{}, Table2_0(), "node2", "/t.json", {"--self", "'node2'"}},
      {{}, kTable, "", "/t.json", {"--self", "MA_CURRENT_IP", "not set", "2 servers"}},
      {{{"MA_NUM_GPUS", "4"}}, kTable, "s0", "/t.json", {"MA_NUM_GPUS", "'4'", "s0", "2 devices"}},
      {{{"MA_NUM_GPUS", "0"}}, kTable, "s0", "/t.json", {"MA_NUM_GPUS", "'0'"}},
      {{{"MA_NUM_GPUS", "x"}}, kTable, "s0", "/t.json", {"MA_NUM_GPUS", "'x'"}},
      {{{"MA_NUM_HOSTS", "0"}}, kTable, "s0", "/t.json", {"MA_NUM_HOSTS", "'0'"}},
      {{{"MA_NUM_HOSTS", "2"}, {"MA_TASK_INDEX", "2"}}, kTable, "s0", "/t.json", {"MA_TASK_INDEX", "'2'"}},
      {{{"MA_NUM_HOSTS", "2"}, {"VK_TASK_INDEX", "x"}}, kTable, "s0", "/t.json", {"VK_TASK_INDEX", "'x'"}},
  };
  for (const auto& one : cases) {
    const auto plan = Plan(one.variables, one.table, one.self, one.path);
    ASSERT_TRUE(absl::IsInvalidArgument(plan.status())) << one.words[0] << plan.status();
    const std::string text(plan.status().message());
    for (const std::string& word : one.words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_EQ(text.find('\n'), text.npos) << text;
  }
}

TEST(Ascend, TellsATableThatIsStillToCome) {
  const absl::Status missing = Plan({}, "", "s0", "/t.json", AscendAlone).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("RANK_TABLE_FILE"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/t.json"));
  const absl::Status begun = Plan({}, R"({"status":"initializing"})", "s0", "/t.json", AscendAlone).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(begun)) << begun;
  EXPECT_THAT(std::string(begun.message()), HasSubstr("initializing"));
  EXPECT_EQ(begun.message().find('\n'), begun.message().npos);
  EXPECT_TRUE(absl::IsFailedPrecondition(Plan({}, kEmpty, "s0", "/t.json", AscendAlone).status()));
  // Errors that no rank table could fix are reported before waiting for one.
  EXPECT_TRUE(absl::IsInvalidArgument(Plan({{"MA_NUM_HOSTS", "0"}}, "", "s0", "/t.json", AscendAlone).status()));
}

TEST(Ascend, DoesNotWaitForAFileOfAnotherName) {
  EXPECT_TRUE(absl::IsInvalidArgument(Plan({}, "", "s0", "/t.txt", AscendAlone).status()));
}

}  // namespace
}  // namespace taskd::modes
