// TF_CONFIG and mode ps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/modes/plans/tf_config.h"
#include "agent/modes/testing/plan.h"

namespace taskd::modes {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As TI-ONE's documentation has it.
const char kDocumented[] =
    R"({ "cluster": { "ps": [ "train-960252492096760832-7an13ppfli80-ps-0.train-100031385875.svc:2222", )"
    R"("train-960252492096760832-7an13ppfli80-ps-1.train-100031385875.svc:2222" ], )"
    R"("worker": [ "train-960252492096760832-7an13ppfli80-worker-0.train-100031385875.svc:2222", )"
    R"("train-960252492096760832-7an13ppfli80-worker-1.train-100031385875.svc:2222" ] }, )"
    R"("task": { "type": "ps", "index": 0 }, "environment": "cloud" })";

// One ps, two workers, and a task.
std::string Config(const std::string& task) {
  return R"({"cluster":{"ps":["p:1"],"worker":["w:1","w:2"]},"task":)" + task + "}";
}

TEST(TfConfig, ReadsTheDocumentedOne) {
  const absl::StatusOr<TfConfig> config = ParseTfConfig(kDocumented);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->type, "ps");
  EXPECT_EQ(config->index, 0);
  ASSERT_EQ(config->cluster.at("worker").size(), 2u);
  EXPECT_EQ(config->cluster.at("worker")[1].host,
            "train-960252492096760832-7an13ppfli80-worker-1.train-100031385875.svc");
  EXPECT_EQ(config->cluster.at("worker")[1].port, 2222);
}

TEST(TfConfig, TheMadeOneIsTheDocumentedOne) {
  const std::string name = "train-960252492096760832-7an13ppfli80-", domain = ".train-100031385875.svc";
  const std::string made = *MakeTfConfig(
      {name + "ps-0" + domain, name + "ps-1" + domain, name + "worker-0" + domain, name + "worker-1" + domain}, 2, 0);
  EXPECT_EQ(made, nlohmann::ordered_json::parse(kDocumented).dump());
}

TEST(TfConfig, IsMadeForEveryNode) {
  const std::vector<std::string> hosts = {"a", "fe80::1", "c"};
  const std::string cluster = R"({"cluster":{"ps":["a:2222","[fe80::1]:2222"],"worker":["c:2222"]},"task":)";
  EXPECT_EQ(*MakeTfConfig(hosts, 2, 0), cluster + R"({"type":"ps","index":0},"environment":"cloud"})");
  EXPECT_EQ(*MakeTfConfig(hosts, 2, 1), cluster + R"({"type":"ps","index":1},"environment":"cloud"})");
  EXPECT_EQ(*MakeTfConfig(hosts, 2, 2), cluster + R"({"type":"worker","index":0},"environment":"cloud"})");
  for (int nodes = 2; nodes <= 64; ++nodes) {
    std::vector<std::string> names;
    for (int i = 0; i < nodes; ++i) names.push_back("n" + std::to_string(i));
    for (const int ps : {1, nodes / 2, nodes - 1}) {
      for (int index = 0; index < nodes; ++index) {
        const absl::StatusOr<TfConfig> read = ParseTfConfig(*MakeTfConfig(names, ps, index));
        ASSERT_TRUE(read.ok()) << read.status();
        ASSERT_EQ(read->cluster.at(read->type)[read->index].host, names[index]);
      }
    }
  }
}

TEST(TfConfig, TakesWhatTensorFlowTakes) {
  for (const std::string& text : {
           Config(R"({"type":"worker","index":1})"),
           Config(R"({"type":"evaluator","index":0})"),
           Config(R"({"type":"evaluator","index":3})"),
           Config(R"({"type":"chief","index":0})"),
           Config(R"({"type":"ps","index":0,"trial":"x"})"),
           std::string(
               R"({"cluster":{"ps":["p:1"],"worker":["w:1"],"chief":["c:1"]},"task":{"type":"chief","index":0}})"),
           std::string(
               R"({"cluster":{"ps":["p:1"],"worker":["w:1"]},"task":{"type":"ps","index":0},"rpc_layer":"grpc"})"),
           std::string(R"({"cluster":{"ps":["[::1]:1"],"worker":["10.0.0.1:65535"]},"task":{"type":"ps","index":0}})"),
       }) {
    EXPECT_TRUE(ParseTfConfig(text).ok()) << text << ParseTfConfig(text).status();
  }
}

TEST(TfConfig, ClusterWithoutPs) {
  for (const char* text : {R"({"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}})",
                           R"({"cluster":{"chief":["a:1"],"worker":["b:1"]},"task":{"type":"worker","index":"0"}})",
                           R"({"cluster":{"chief":["a:1"]},"task":{"type":"chief","index":0}})",
                           R"({"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":0}})"}) {
    EXPECT_TRUE(ParseTfConfig(text).ok()) << text << ParseTfConfig(text).status();
  }
}

TEST(TfConfig, RefusesAllElse) {
  const std::string ps = R"(,"task":{"type":"ps","index":0}})";
  const std::string nested(100, '[');
  const struct {
    std::string text;
    std::vector<std::string> named;
  } cases[] = {
      {"{", {"'{'", "not JSON"}},
      {"x", {"'x'", "not JSON"}},
      {"[]", {"'[]'", "not a JSON object"}},
      {"null", {"'null'", "not a JSON object"}},
      {"\"a\"", {"not a JSON object"}},
      {nested, {"not JSON"}},
      {R"({"cluster":")"
       "\xff"
       R"("})",
       {"not JSON"}},
      {R"({"cluster":1,"cluster":2})", {"not JSON", "cluster"}},
      {"{\n\n\"a\"}", {"'{??\"a\"}'"}},
      {"{}", {"cluster is missing"}},
      {R"({"cluster":[]})", {"cluster '[]'", "object"}},
      {R"({"cluster":{}})", {"cluster.worker is missing", "worker, chief or master"}},
      {R"({"sparseCluster":{"worker":{"1":"w:1"},"ps":["p:1"]}})", {"cluster is missing", "enableDynamicWorker"}},
      {R"({"cluster":{"ps":["p:1"]})" + ps, {"cluster.worker is missing"}},
      {R"({"cluster":{"worker":["p:1"]})" + ps, {"task.type 'ps'", "not in cluster"}},
      {R"({"cluster":{"ps":[],"worker":["w:1"]})" + ps, {"'cluster.ps' '[]'"}},
      {R"({"cluster":{"ps":["p:1"],"worker":[]})" + ps, {"'cluster.worker' '[]'"}},
      {R"({"cluster":{"ps":["p:1"],"worker":null})" + ps, {"'cluster.worker' 'null'"}},
      {R"({"cluster":{"ps":["p:1"],"worker":{"0":"w:1"}})" + ps, {"'cluster.worker'", "list"}},
      {R"({"cluster":{"ps":"p:1","worker":["w:1"]})" + ps, {"'cluster.ps' '\"p:1\"'"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["w:1"],"chief":[]})" + ps, {"'cluster.chief'"}},
      {R"({"cluster":{"ps":["p"],"worker":["w:1"]})" + ps, {"'cluster.ps'[0]", "\"p\"", "host:port"}},
      {R"({"cluster":{"ps":["p:"],"worker":["w:1"]})" + ps, {"\"p:\"", "host:port"}},
      {R"({"cluster":{"ps":[":1"],"worker":["w:1"]})" + ps, {"\":1\"", "host:port"}},
      {R"({"cluster":{"ps":[""],"worker":["w:1"]})" + ps, {"\"\"", "host:port"}},
      {R"({"cluster":{"ps":["p:x"],"worker":["w:1"]})" + ps, {"\"p:x\"", "port"}},
      {R"({"cluster":{"ps":["p:0"],"worker":["w:1"]})" + ps, {"\"p:0\"", "1 to 65535"}},
      {R"({"cluster":{"ps":["p:65536"],"worker":["w:1"]})" + ps, {"\"p:65536\"", "1 to 65535"}},
      {R"({"cluster":{"ps":["p:-1"],"worker":["w:1"]})" + ps, {"\"p:-1\""}},
      {R"({"cluster":{"ps":["::1"],"worker":["w:1"]})" + ps, {"\"::1\"", "host:port"}},
      {R"({"cluster":{"ps":["a b:1"],"worker":["w:1"]})" + ps, {"blank"}},
      {R"({"cluster":{"ps":["a\n:1"],"worker":["w:1"]})" + ps, {"blank"}},
      {R"({"cluster":{"ps":[1],"worker":["w:1"]})" + ps, {"'cluster.ps'[0], '1'", "string"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["w:1","w:1"]})" + ps, {"'cluster.worker'[1]", "\"w:1\"", "twice"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["p:1"]})" + ps, {"'cluster.worker'[0]", "\"p:1\"", "twice"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["p:01"]})" + ps, {"'cluster.worker'[0]", "twice"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["w:1"]}})", {"task is missing"}},
      {Config("[]"), {"task '[]'", "object"}},
      {Config("{}"), {"task.type is missing"}},
      {Config(R"({"type":"ps"})"), {"task.index is missing"}},
      {Config(R"({"index":0})"), {"task.type is missing"}},
      {Config(R"({"type":1,"index":0})"), {"task.type '1'", "string"}},
      {Config(R"({"type":"master","index":0})"), {"task.type 'master'", "not in cluster"}},
      {Config(R"({"type":"","index":0})"), {"task.type ''", "not in cluster"}},
      {Config(R"({"type":"ps","index":1})"), {"task.index '1'", "0 to 0"}},
      {Config(R"({"type":"worker","index":2})"), {"task.index '2'", "0 to 1"}},
      {Config(R"({"type":"worker","index":-1})"), {"task.index '-1'", "0 to 1"}},
      {Config(R"({"type":"worker","index":"+1"})"), {"task.index '\"+1\"'", "integer"}},
      {Config(R"({"type":"worker","index":1.0})"), {"task.index '1.0'", "integer"}},
      {Config(R"({"type":"worker","index":true})"), {"task.index 'true'", "integer"}},
      {Config(R"({"type":"worker","index":null})"), {"task.index 'null'", "integer"}},
      {Config(R"({"type":"worker","index":18446744073709551615})"), {"task.index", "integer"}},
      {Config(R"({"type":"worker","index":18446744073709551617})"), {"task.index", "integer"}},
      {Config(R"({"type":"worker","index":1e400})"), {"TF_CONFIG"}},
      {Config(R"({"type":"evaluator","index":-1})"), {"task.index '-1'"}},
      {Config(R"({"type":"chief","index":1})"), {"task.index '1'", "0 to 0"}},
      {R"({"cluster":{"ps":["p:1"],"worker":["w:1"],"chief":["c:1"]},"task":{"type":"chief","index":1}})",
       {"task.index '1'", "0 to 0"}},
      {Config(R"({"type":"ps","index":0})") + std::string(131072, ' '), {"bytes", "131072"}},
  };
  for (const auto& one : cases) {
    TestNode node("ps", {{"TF_CONFIG", one.text}});
    const std::string error = node.Error();
    EXPECT_THAT(error, HasSubstr("TF_CONFIG")) << one.text.substr(0, 200);
    for (const std::string& part : one.named) EXPECT_THAT(error, HasSubstr(part)) << one.text.substr(0, 200);
    EXPECT_LT(error.size(), 700u);
  }
}

TEST(Ps, TfConfigIsPassedOnAsItIs) {
  TestNode node("ps", {{"TF_CONFIG", kDocumented}});
  const json plan = node.Json();
  EXPECT_EQ(plan["platform"], "ti-one");
  EXPECT_EQ(plan["role"], "ps");
  EXPECT_EQ(plan["index"], 0);
  EXPECT_EQ(plan["serves"], true);
  EXPECT_EQ(plan["start"], "at-once");
  ASSERT_EQ(plan["nodes"].size(), 4u);
  EXPECT_EQ(plan["nodes"][2]["name"], "train-960252492096760832-7an13ppfli80-worker-0.train-100031385875.svc");
  EXPECT_EQ(plan["nodes"][1]["serves"], true);
  EXPECT_EQ(plan["nodes"][2]["serves"], false);
  EXPECT_EQ(plan["manager"], "train-960252492096760832-7an13ppfli80-ps-0.train-100031385875.svc:9601");
  EXPECT_EQ(plan["processes"][0]["argv"], json{"train"});
  EXPECT_EQ(plan["processes"][0]["env"], (json{{"TF_CONFIG", kDocumented}}));
  // NODE_LIST is not looked at then.
  node.environment["NODE_LIST"] = "";
  node.options.ps_num = 9;
  EXPECT_THAT(node.Plan()->warnings, ElementsAre(HasSubstr("--ps-num")));
}

TEST(Ps, TheOrderOfNodesIsTheSameEverywhere) {
  const std::string clusters[] = {
      R"({"cluster":{"ps":["p0:1","p1:1"],"worker":["[::1]:1"],"chief":["c:1"],"a":["x:1"],"evaluator":["e:1"]},"task":)",
      R"({"cluster":{"evaluator":["e:1"],"chief":["c:1"],"worker":["[::1]:1"],"a":["x:1"],"ps":["p0:1","p1:1"]},"task":)"};
  const struct {
    const char *type, *task_index;
    int index;
    bool serves;
  } cases[] = {{"ps", "0", 0, true},     {"ps", "1", 1, true}, {"worker", "0", 2, false},
               {"chief", "0", 3, false}, {"a", "0", 4, false}, {"evaluator", "0", 5, true}};
  for (const std::string& cluster : clusters) {
    for (const auto& one : cases) {
      TestNode node("ps",
                    {{"TF_CONFIG", cluster + R"({"type":")" + one.type + R"(","index":)" + one.task_index + "}}"}});
      const absl::StatusOr<ModePlan> plan = node.Plan();
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::vector<std::string> names;
      for (const ModeNode& other : plan->nodes) names.push_back(other.name);
      EXPECT_THAT(names, ElementsAre("p0", "p1", "::1", "c", "x", "e"));
      EXPECT_EQ(plan->index, one.index) << one.type;
      EXPECT_EQ(plan->role, one.type);
      EXPECT_EQ(plan->serves, one.serves) << one.type;
      EXPECT_EQ(plan->nodes[plan->index].serves, one.serves) << one.type;
    }
  }
}

TEST(Ps, WithoutPsNobodyIsEndedEarly) {
  for (const char* type : {"worker", "chief", "evaluator"}) {
    const std::string config = R"({"cluster":{"chief":["c:1"],"worker":["w:1","v:1"]},"task":{"type":")" +
                               std::string(type) + R"(","index":0},"environment":"cloud"})";
    const absl::StatusOr<ModePlan> plan = TestNode("auto", {{"TF_CONFIG", config}}).Plan();
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->role, type);
    EXPECT_FALSE(plan->serves) << type;
    ASSERT_EQ(plan->nodes.size(), 3u);
    for (const ModeNode& node : plan->nodes) EXPECT_FALSE(node.serves) << node.name;
  }
}

TEST(Ps, AnEvaluatorStandsBehindTheCluster) {
  const absl::StatusOr<ModePlan> plan =
      TestNode("ps", {{"TF_CONFIG", Config(R"({"type":"evaluator","index":0})")}}).Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->index, 3);
  EXPECT_EQ(plan->nodes.size(), 3u);
  EXPECT_TRUE(plan->serves);
  EXPECT_EQ(plan->role, "evaluator");
}

TEST(Ps, NodeListAndPsNum) {
  TestNode node("ps", {{"NODE_LIST", "a:0,b:1,[::1]:2"}, {"INDEX", "2"}});
  node.options.ps_num = 2;
  const json plan = node.Json();
  EXPECT_EQ(plan["role"], "worker");
  EXPECT_EQ(plan["index"], 2);
  EXPECT_EQ(plan["serves"], false);
  EXPECT_EQ(plan["nodes"][0]["serves"], true);
  EXPECT_EQ(plan["nodes"][1]["serves"], true);
  EXPECT_EQ(plan["nodes"][2]["serves"], false);
  EXPECT_EQ(plan["nodes"][2]["cards"], 2);
  EXPECT_EQ(plan["manager"], "a:9601");
  EXPECT_EQ(plan["processes"][0]["env"]["TF_CONFIG"],
            R"({"cluster":{"ps":["a:2222","b:2222"],"worker":["[::1]:2222"]},"task":{"type":"worker","index":0},)"
            R"("environment":"cloud"})");
  // A TF_CONFIG of nothing is none.
  node.environment["TF_CONFIG"] = "";
  EXPECT_EQ(node.Json(), plan);
}

TEST(Ps, PsNumLeavesBothKinds) {
  TestNode node("ps", {{"NODE_LIST", "a:1,b:1,c:1"}, {"INDEX", "0"}});
  EXPECT_THAT(node.Error(), AllOf(HasSubstr("--ps-num"), HasSubstr("not set"), HasSubstr("TF_CONFIG")));
  for (const int bad : {-1, 0, 3, 4}) {
    node.options.ps_num = bad;
    EXPECT_THAT(node.Error(), AllOf(HasSubstr("--ps-num '" + std::to_string(bad) + "'"), HasSubstr("1 to 2")));
  }
  for (const int good : {1, 2}) {
    node.options.ps_num = good;
    EXPECT_EQ(node.Error(), "");
  }
  TestNode binary("ps", {{"NODE_LIST", "a:1,b\xff:1"}, {"INDEX", "0"}});
  binary.options.ps_num = 1;
  EXPECT_THAT(binary.Error(), AllOf(HasSubstr("NODE_LIST"), HasSubstr("UTF-8")));
  TestNode alone("ps", {{"NODE_LIST", "a:1"}, {"INDEX", "0"}});
  alone.options.ps_num = 1;
  EXPECT_THAT(alone.Error(), HasSubstr("--ps-num '1'"));
}

}  // namespace
}  // namespace taskd::modes
