#include "policy/action.h"

namespace taskd::policy {
namespace {

constexpr const char* kOnSlow[] = {"report", "rehearse", "order", "replace", "drop"};
constexpr const char* kDecision[] = {"none", "rehearse", "order", "replace", "drop"};
constexpr const char* kTrigger[] = {"verdict", "hang", "failures", "person"};
constexpr const char* kState[] = {"decided", "waiting", "under_way", "done", "called_off", "failed"};
constexpr const char* kOutcome[] = {"sent", "taken", "failed"};
constexpr const char* kRefusal[] = {"not_open_long", "cannot_say",   "scope",        "cause",        "confidence",
                                    "cost",          "held",         "no_node_name", "node_zero",    "no_spare",
                                    "too_few_nodes", "does_not_pay", "paused",       "did_not_help", "budget"};
static_assert(std::size(kRefusal) == kRefusals && std::size(kDecision) == kDecisions);

}  // namespace

const char* Name(OnSlow value) { return kOnSlow[static_cast<size_t>(value)]; }
const char* Name(Decision value) { return kDecision[static_cast<size_t>(value)]; }
const char* Name(Trigger value) { return kTrigger[static_cast<size_t>(value)]; }
const char* Name(State value) { return kState[static_cast<size_t>(value)]; }
const char* Name(Outcome value) { return kOutcome[static_cast<size_t>(value)]; }
const char* Name(Refusal value) { return kRefusal[static_cast<size_t>(value)]; }

}  // namespace taskd::policy
