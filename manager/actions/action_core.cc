#include "manager/actions/action_core.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "policy/render.h"

namespace taskd::manager {
namespace {

policy::Policy::Kept ReadState(const std::string& text) {
  if (text.empty()) return {};
  absl::StatusOr<policy::Policy::Kept> kept = policy::ReadKept(text);
  if (kept.ok()) return *std::move(kept);
  spdlog::warn("the kept decisions cannot be read, so decisions are paused until `taskd act allow`: {}",
               Printable(std::string(kept.status().message())));
  policy::Policy::Kept paused;
  paused.paused = true;
  return paused;
}

// Why nodes have no certain name, in one line; empty: all have one.
std::string NamelessNodes(const std::vector<policy::Node>& nodes) {
  std::string text;
  size_t others = 0;
  for (const policy::Node& node : nodes) {
    if (!node.node_name.empty()) continue;
    if (!text.empty()) {
      ++others;
      continue;
    }
    text = absl::StrCat("node ", node.node, " (", node.host, "): ", node.refusal);
  }
  return others == 0 ? text : absl::StrCat(text, "; and ", others, " more nodes");
}

}  // namespace

ActionCore::ActionCore(Options options, const std::string& kept)
    : options_(std::move(options)), policy_(options_.policy, options_.seed, ReadState(kept)) {}

policy::View ActionCore::Look(const SharedReport& report) const {
  policy::View view = options_.look(*report);
  view.report = report.get();
  view.unix_ns = options_.unix_ns();
  return view;
}

absl::Status ActionCore::SaveNow() {
  if (!options_.save) return absl::OkStatus();
  std::string state;
  {
    std::lock_guard lock(mutex_);
    state = policy::RenderKept(policy_.kept());
  }
  absl::Status saved = options_.save(state);
  const bool failed_before = std::exchange(save_failed_, !saved.ok());
  if (!saved.ok() && !failed_before) {
    spdlog::error("decisions on slow nodes are not kept, a restarted manager would not know them: {}", saved.message());
  } else if (saved.ok() && failed_before) {
    spdlog::info("decisions on slow nodes are kept again");
  }
  return saved;
}

void ActionCore::KeepUp() {
  if (!decides()) return;
  const SharedReport report = options_.report();
  std::lock_guard change(change_mutex_);
  // Nodes and price cost a look at the whole job: only an open verdict needs them.
  policy::View view;
  view.report = report.get();
  view.unix_ns = options_.unix_ns();
  if (std::ranges::any_of(report->verdicts, &diagnosis::Verdict::open)) view = Look(report);
  std::vector<std::pair<const char*, policy::Action>> events;
  bool changed = save_failed_;
  {
    std::lock_guard lock(mutex_);
    std::set<std::string> known;
    for (const policy::Action& action : policy_.kept().actions) known.insert(action.id);
    for (const std::string& id : policy_.Advance(view)) {
      const policy::Action& action = *policy_.Find(id);
      changed = true;
      if (action.state == policy::State::kCalledOff) {
        events.emplace_back("action_called_off", action);
        continue;
      }
      ++counts_.decisions[static_cast<size_t>(action.decision)];
      if (action.refused_by) ++counts_.refusals[static_cast<size_t>(*action.refused_by)];
      // A refusal whose reason goes back and forth would fill the log.
      if (!action.refused_by || !known.contains(id)) events.emplace_back("action_decided", action);
    }
  }
  if (changed) SaveNow().IgnoreError();
  for (const auto& [kind, action] : events) options_.on_event(kind, action);
}

std::string ActionCore::Json() const {
  const SharedReport report = options_.report();
  const policy::View view = Look(report);
  std::lock_guard lock(mutex_);
  return policy::RenderJson(policy_.kept(), options_.policy, policy_.RemainingS(view), NamelessNodes(view.nodes));
}

std::deque<policy::Action> ActionCore::List() const {
  std::lock_guard lock(mutex_);
  return policy_.kept().actions;
}

ActionCore::Counts ActionCore::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts = counts_;
  for (const policy::Action& action : policy_.kept().actions) {
    if (action.state != policy::State::kUnderWay) continue;
    counts.orders_waiting +=
        static_cast<uint64_t>(std::ranges::count(action.orders, policy::Outcome::kSent, &policy::Order::outcome));
  }
  return counts;
}

absl::StatusOr<std::string> ActionCore::Why(int node) const {
  const SharedReport report = options_.report();
  const policy::View view = Look(report);
  std::lock_guard lock(mutex_);
  return policy_.Why(node, view);
}

absl::StatusOr<std::string> ActionCore::Evict(int node) {
  const SharedReport report = options_.report();
  const policy::View view = Look(report);
  if (std::ranges::find(view.nodes, node, &policy::Node::node) == view.nodes.end()) {
    return absl::NotFoundError(absl::StrCat("node ", node, " is not connected"));
  }
  if (options_.policy.order_to.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node, " stays: this job has no receiver that an order could be sent to (--order-to)"));
  }
  std::lock_guard change(change_mutex_);
  absl::StatusOr<policy::Action> action = absl::UnknownError("");
  {
    std::lock_guard lock(mutex_);
    action = policy_.Evict(node, view);
    if (!action.ok()) return action.status();
    ++counts_.decisions[static_cast<size_t>(action->decision)];
  }
  SaveNow().IgnoreError();  // it is sent as soon as it is kept
  options_.on_event("action_decided", *action);
  return policy::RenderJson(*action);
}

absl::StatusOr<std::optional<ActionCore::DueOrder>> ActionCore::TakeOrder(const std::string& to) {
  std::lock_guard change(change_mutex_);
  DueOrder due;
  {
    std::lock_guard lock(mutex_);
    const std::optional<policy::Policy::Due> next = policy_.NextOrder(to);
    if (!next) return std::nullopt;
    due.withdraw = next->withdraw;
    due.action = *policy_.Find(next->id);
    const auto before = std::ranges::find(due.action.orders, to, &policy::Order::to);
    if (before == due.action.orders.end()) {
      policy_.SetOrder(next->id, {to, options_.unix_ns(), policy::Outcome::kSent, "not answered yet"},
                       options_.policy.order_to.size());
    }
  }
  if (absl::Status saved = SaveNow(); !saved.ok()) return saved;
  return due;
}

void ActionCore::EndOrder(const std::string& to, const DueOrder& due, policy::Outcome outcome,
                          const std::string& text) {
  std::lock_guard change(change_mutex_);
  std::optional<policy::Action> ended;
  {
    std::lock_guard lock(mutex_);
    const policy::Action* action = policy_.Find(due.action.id);
    if (action == nullptr) return;
    const policy::State before = action->state;
    policy::Order order{to, options_.unix_ns(), outcome, text};
    if (due.withdraw) {
      // What the receiver said of the order itself stays.
      const auto sent = std::ranges::find(action->orders, to, &policy::Order::to);
      if (sent != action->orders.end()) order.outcome = sent->outcome;
      order.withdrawn = outcome != policy::Outcome::kSent;
    } else if (outcome != policy::Outcome::kSent) {
      ++(outcome == policy::Outcome::kTaken ? counts_.orders_taken : counts_.orders_failed);
    }
    policy_.SetOrder(due.action.id, order, options_.policy.order_to.size());
    if (action->state != before && (action->state == policy::State::kDone || action->state == policy::State::kFailed)) {
      ended = *action;
    }
  }
  SaveNow().IgnoreError();
  if (ended) options_.on_event("action_done", *ended);
}

absl::Status ActionCore::Cancel(const std::string& id) {
  std::lock_guard change(change_mutex_);
  policy::Action called_off;
  {
    std::lock_guard lock(mutex_);
    if (absl::Status status = policy_.Cancel(id, options_.unix_ns()); !status.ok()) return status;
    called_off = *policy_.Find(id);
  }
  options_.on_event("action_called_off", called_off);
  return SaveNow();
}

absl::Status ActionCore::Pause() {
  std::lock_guard change(change_mutex_);
  {
    std::lock_guard lock(mutex_);
    policy_.Pause();
  }
  return SaveNow();
}

absl::Status ActionCore::Allow() {
  std::lock_guard change(change_mutex_);
  {
    std::lock_guard lock(mutex_);
    policy_.Allow();
  }
  return SaveNow();
}

}  // namespace taskd::manager
