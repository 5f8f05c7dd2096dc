// The modes, one function each. Internal to agent/modes. `plan` comes with its mode; each fills in the rest, `manager`
// excepted, which PlanMode sets from nodes[0].
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/modes/plans/mode_plan.h"

namespace taskd::modes {

struct ModeInput {
  const ModeOptions& options;
  const Environment& environment;
  const ModeMachine& machine;

  // The variable's value; "" if it is not set. In all modes a variable that is set to nothing counts as not set.
  std::string Get(const std::string& name) const;
  bool Has(const std::string& name) const { return !Get(name).empty(); }
};

// ---- Shared (mode_plan.cc)

// For messages: in quotes, without control characters, of bounded length.
std::string QuotedValue(std::string_view value);
// Decimal digits only.
std::optional<int> ReadInteger(std::string_view text, int least, int most);
// As IntegerVariable's `most`: none.
inline constexpr int kAnyInteger = std::numeric_limits<int>::max();
// The variable as an integer of `least`..`most`; `fallback` if it is not set. INVALID_ARGUMENT names all of it.
absl::StatusOr<int> IntegerVariable(const ModeInput& input, const std::string& name, int least, int most,
                                    std::optional<int> fallback);
// Sets `name` in the environment of a process. INVALID_ARGUMENT: it is already set to another value; `why` explains
// where `value` comes from ("NODE_LIST has 2 nodes").
absl::Status Agree(const ModeInput& input, const std::string& name, const std::string& value, const std::string& why,
                   Environment* environment);
// Its first IPv4; else the name itself, which is then noted in plan->unresolved.
std::string Address(const ModeInput& input, const std::string& host, ModePlan* plan);
// "[a::b]:22", "host:22".
std::string Endpoint(const std::string& host, int port);
// The 17 variables, if their conditions are met (RdmaMode; kAuto: also NODE_LIST is set), over `environment`; what is
// set in `input` stays.
void AddRdma(const ModeInput& input, const std::vector<ModeNode>& nodes, Environment* environment);

// ---- TI-ONE (ti_one.cc, ps.cc)

// The nodes and the index, from NODE_LIST and INDEX, else from ModelArts' variables, into `plan`; NODE_LIST and INDEX
// into `environment`. `least_cards`: of every node.
absl::Status ReadTiOneNodes(const ModeInput& input, int least_cards, ModePlan* plan, Environment* environment);
absl::Status PlanTorch(const ModeInput& input, ModePlan* plan);     // also without any platform
absl::Status PlanTiOneMpi(const ModeInput& input, ModePlan* plan);  // mpi, horovod
absl::Status PlanRay(const ModeInput& input, ModePlan* plan);
absl::Status PlanPs(const ModeInput& input, ModePlan* plan);

// ---- ModelArts (model_arts.cc, ascend.cc)

// MA_NUM_HOSTS, the index, the nodes' names and cards, into `plan`.
absl::Status ReadModelArtsNodes(const ModeInput& input, ModePlan* plan);
absl::Status PlanModelArtsMpi(const ModeInput& input, ModePlan* plan);  // mpi, horovod
absl::Status PlanPytorchGpu(const ModeInput& input, ModePlan* plan);
absl::Status PlanTensorflowGpu(const ModeInput& input, ModePlan* plan);
absl::Status PlanAscend(const ModeInput& input, ModePlan* plan);

}  // namespace taskd::modes
