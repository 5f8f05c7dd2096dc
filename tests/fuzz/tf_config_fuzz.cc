// TF_CONFIG and NODE_LIST: an error of one line, or a plan that names its node and prints as one line.
#include <cstdio>
#include <cstdlib>

#include "agent/modes/plans/mode_plan.h"
#include "agent/modes/plans/tf_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

void Try(const char* mode, std::optional<int> ps_num, const taskd::Environment& environment) {
  using namespace taskd;
  modes::ModeMachine machine;
  machine.ipv4 = [](const std::string&) { return std::string(); };
  machine.gpus = [] { return -1; };
  machine.read_file = [](const std::string& path) -> absl::StatusOr<std::string> { return absl::NotFoundError(path); };
  machine.sysfs = "/nonexistent";
  modes::ModeOptions options;
  options.mode = mode;
  options.ps_num = ps_num;
  options.command = {"x"};
  const absl::StatusOr<modes::ModePlan> plan = modes::PlanMode(options, environment, machine);
  if (!plan.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(plan.status()) && !plan.status().message().empty());
    FUZZ_CHECK(plan.status().message().find('\n') == absl::string_view::npos);
    return;
  }
  FUZZ_CHECK(!plan->nodes.empty() && plan->index >= 0);
  const bool listed = plan->index < static_cast<int>(plan->nodes.size());
  FUZZ_CHECK(listed || plan->role == "evaluator" || plan->role == "chief");
  FUZZ_CHECK(!listed || plan->nodes[plan->index].serves == plan->serves);
  FUZZ_CHECK(modes::ModePlanJson(*plan).find('\n') == std::string::npos && !modes::ModePlanText(*plan).empty());
  const auto made = plan->processes.empty() ? Environment() : plan->processes[0].environment;
  const auto config = made.find("TF_CONFIG");
  if (plan->mode != modes::Mode::kPs) return;
  FUZZ_CHECK(config != made.end());
  const auto given = environment.find("TF_CONFIG");
  FUZZ_CHECK(given == environment.end() || given->second.empty() || given->second == config->second);
  if (given != environment.end()) return;
  // What NODE_LIST calls a host may be no host: that is TensorFlow's to say. What it can be read as is right.
  const absl::StatusOr<modes::TfConfig> read = modes::ParseTfConfig(config->second);
  if (read.ok()) FUZZ_CHECK(read->cluster.at(read->type)[read->index].host == plan->nodes[plan->index].name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.find('\0') != std::string::npos) return 0;  // no variable has one
  Try("ps", std::nullopt, {{"TF_CONFIG", text}});
  Try("ps", 1, {{"NODE_LIST", text}, {"INDEX", "1"}});
  for (const char* mode : {"torch", "mpi", "horovod", "ray"}) Try(mode, {}, {{"NODE_LIST", text}, {"INDEX", "0"}});
  Try("mpi", {}, {{"NODE_LIST", "a:1,b:2"}, {"INDEX", "1"}, {"NODE_IP_SLOT_LIST", text}});
  Try("torch", {}, {{"NODE_LIST", "a:1,b:2"}, {"INDEX", "1"}, {"MASTER_ADDR", text}});
  Try("ray", {}, {{"NODE_LIST", "a:1,b:2"}, {"INDEX", text}, {"HEAD_PORT", text}});
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"cluster":{"ps":["p0.svc:2222","p1.svc:2222"],"worker":["w0.svc:2222"]},"task":{"type":"ps","index":1},"environment":"cloud"})",
      R"({"cluster":{"ps":["p:1"],"worker":["[::1]:2"],"chief":["c:3"],"x":["y:4"]},"task":{"type":"chief","index":0}})",
      R"({"cluster":{"ps":["p:1"],"worker":["w:2"]},"task":{"type":"evaluator","index":0}})",
      R"({"cluster":{"ps":["p:1"],"worker":["\u0077:2"]},"task":{"type":"worker","index":-0}})",
      "a:1,b:2",
      "[fe80::1]:8,10.0.0.2:8,c.svc.cluster.local:0",
      "a:1,a:1",
      "::1:8",
      "1",
      "[[[["};
}
