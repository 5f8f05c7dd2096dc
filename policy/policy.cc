#include "policy/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ledger/render.h"

namespace taskd::policy {
namespace {

using diagnosis::Verdict;

constexpr double kHourS = 3600;
constexpr double kNs = 1e9;

uint64_t Mix(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

Decision DecisionOf(OnSlow on_slow) {
  switch (on_slow) {
    case OnSlow::kReport:
      return Decision::kNone;
    case OnSlow::kRehearse:
      return Decision::kRehearse;
    case OnSlow::kOrder:
      return Decision::kOrder;
    case OnSlow::kReplace:
      return Decision::kReplace;
    case OnSlow::kDrop:
      return Decision::kDrop;
  }
  return Decision::kNone;
}

std::string Called(const Node& node) {
  const std::string& name = node.node_name.empty() ? node.host : node.node_name;
  return absl::StrCat("node ", node.node, name.empty() ? "" : absl::StrCat(" (", name, ")"));
}

const Node* FindNode(const View& view, int node) {
  const auto found = std::ranges::find(view.nodes, node, &Node::node);
  return found == view.nodes.end() ? nullptr : &*found;
}

// The only node that the verdict accuses; -1: none, or several.
int AccusedNodeOf(const Verdict& verdict) {
  std::set<int> nodes;
  if (verdict.scope == diagnosis::Scope::kNode) nodes.insert(verdict.ids.begin(), verdict.ids.end());
  for (const diagnosis::AccusedNode& node : verdict.nodes) nodes.insert(node.rank);
  return nodes.size() == 1 ? *nodes.begin() : -1;
}

// A number, or 0 where it is none.
double Finite(double value) { return std::isfinite(value) ? value : 0; }

}  // namespace

Policy::Policy(Options options, uint64_t seed, Kept kept) : options_(options), seed_(seed), kept_(std::move(kept)) {}

double Policy::RemainingS(const View& view) const {
  if (options_.remaining_h) {
    return std::max(*options_.remaining_h * kHourS - std::max(Finite(view.attempt_s), 0.0), 0.0);
  }
  return std::clamp(Finite(view.ran_s), 0.0, kMostRemainingH * kHourS);
}

bool Policy::IsHeld(const std::string& node_name) const {
  return std::ranges::find(kept_.evicted, node_name, &Kept::Evicted::node_name) != kept_.evicted.end();
}

std::optional<Policy::Judgement> Policy::RefuseNode(const Node* node, const std::string& called,
                                                    const View& view) const {
  if (node == nullptr) {
    return Judgement{Refusal::kNoNodeName, absl::StrCat(called, " is not connected, so it has no certain name"), {}};
  }
  if (!node->node_name.empty() && IsHeld(node->node_name)) {
    return Judgement{Refusal::kHeld, absl::StrCat(called, " was evicted before in this job"), {}};
  }
  if (node->node_name.empty()) {
    return Judgement{Refusal::kNoNodeName,
                     absl::StrCat(called, " cannot be named to anybody: ",
                                  node->refusal.empty() ? "its name is not known" : node->refusal),
                     {}};
  }
  const bool leaves = options_.on_slow == OnSlow::kReplace || options_.on_slow == OnSlow::kDrop;
  if (leaves && node->node == 0) {
    return Judgement{Refusal::kNodeZero, absl::StrCat(called, " serves the job's store, which would end with it"), {}};
  }
  if (options_.on_slow == OnSlow::kReplace && view.spares <= 0) {
    return Judgement{Refusal::kNoSpare, absl::StrCat("no spare stands by that could take the place of ", called), {}};
  }
  const auto connected = static_cast<int>(view.nodes.size());
  const int least = view.least_nodes > 0 ? view.least_nodes : connected;
  if (options_.on_slow == OnSlow::kDrop && connected - 1 < least) {
    return Judgement{
        Refusal::kTooFewNodes,
        absl::StrCat("without ", called, " the job would have ", connected - 1, " nodes, and it needs ", least),
        {}};
  }
  return std::nullopt;
}

std::optional<Policy::Judgement> Policy::RefuseByOperator(const View& view) const {
  if (kept_.paused) return Judgement{Refusal::kPaused, "decisions are paused (taskd act allow)", {}};
  if (kept_.did_not_help) {
    return Judgement{Refusal::kDidNotHelp, "the last action did not help, so none is taken before taskd act allow", {}};
  }
  const Evictions& most = options_.evictions;
  // A clock that was set back makes an eviction look like one that is still to come: it counts.
  const auto recent = std::ranges::count_if(kept_.evicted, [&](const Kept::Evicted& evicted) {
    return static_cast<double>(view.unix_ns - evicted.time_ns) < most.hours * kHourS * kNs;
  });
  if (recent >= most.nodes) {
    return Judgement{
        Refusal::kBudget,
        absl::StrFormat("%d of at most %d evictions in %g h have been decided", recent, most.nodes, most.hours),
        {}};
  }
  const size_t of_job = std::min(static_cast<size_t>(most.of_job.value_or(kMaxEvicted)), kMaxEvicted);
  if (kept_.evicted.size() >= of_job) {
    return Judgement{Refusal::kBudget,
                     absl::StrCat(kept_.evicted.size(),
                                  " evictions have been decided, as many as a "
                                  "job may have (--evictions)"),
                     {}};
  }
  return std::nullopt;
}

Policy::Judgement Policy::Judge(const Verdict& verdict, const View& view) const {
  const diagnosis::Report& report = *view.report;
  const When& when = options_.when;
  const int64_t open_steps = report.last_step - verdict.since_step;
  if (open_steps < when.open_steps) {
    return {Refusal::kNotOpenLong,
            absl::StrCat("the verdict has been open for ", std::max<int64_t>(open_steps, 0), " steps, and ",
                         when.open_steps, " are asked for"),
            {}};
  }
  if (report.state == diagnosis::JobState::kUnknown) {
    return {Refusal::kCannotSay, "whether the job is slow cannot be said at the moment", {}};
  }
  const bool one = verdict.scope == diagnosis::Scope::kRank || verdict.scope == diagnosis::Scope::kNode;
  if (!one || verdict.ids.empty() || verdict.nodes.size() > 1 ||
      (verdict.scope == diagnosis::Scope::kNode && verdict.ids.size() > 1)) {
    return {Refusal::kScope,
            one ? absl::StrCat("the verdict names ", verdict.nodes.size(), " nodes, and an action takes one")
                : absl::StrCat("the verdict is about a ", Name(verdict.scope), ", not about a node"),
            {}};
  }
  if (!when.causes[static_cast<size_t>(verdict.cause)]) {
    return {
        Refusal::kCause, absl::StrCat("the cause ", Name(verdict.cause), " is not among those of --on-slow-when"), {}};
  }
  if (!(verdict.confidence >= when.confidence)) {
    return {
        Refusal::kConfidence,
        absl::StrFormat("the confidence is %.3g, and %.3g is asked for", Finite(verdict.confidence), when.confidence),
        {}};
  }
  const double cost_ms = std::max(Finite(verdict.cost_ms_per_step), 0.0);
  const double step_ms = Finite(report.step_ms);
  if (!(step_ms > 0 && cost_ms >= when.cost_percent / 100 * step_ms)) {
    return {Refusal::kCost,
            absl::StrFormat("it costs %.3g ms of a step of %.4g ms, and %g %% is asked for", cost_ms, step_ms,
                            when.cost_percent),
            {}};
  }
  const int number = AccusedNodeOf(verdict);
  const Node* node = FindNode(view, number);
  const std::string called = node != nullptr ? Called(*node)
                             : number < 0    ? "the node of the verdict"
                                             : absl::StrCat("node ", number);
  if (std::optional<Judgement> refused = RefuseNode(node, called, view)) return *std::move(refused);

  Promise promise;
  promise.saves_ms_per_step = cost_ms;
  promise.steps = static_cast<int64_t>(std::min(RemainingS(view) * 1e3 / step_ms, 1e15));
  promise.saves_rank_s = cost_ms / 1e3 * static_cast<double>(promise.steps) * std::max(view.slots, 0);
  promise.price_rank_s = std::max(Finite(view.price.rank_s), 0.0);
  const std::string weighed = absl::StrFormat(
      "%s costs %.4g ms of each step, in the %d steps of the %.3g h that remain %s; a restart costs %s (%s)", called,
      cost_ms, promise.steps, RemainingS(view) / kHourS, ledger::Amount(promise.saves_rank_s),
      ledger::Amount(promise.price_rank_s),
      view.price.restarts == 0 ? "estimated" : absl::StrCat("mean of ", view.price.restarts));
  if (!(promise.saves_rank_s > promise.price_rank_s)) return {Refusal::kDoesNotPay, weighed, promise};
  if (std::optional<Judgement> refused = RefuseByOperator(view)) {
    return {refused->refusal, absl::StrCat(refused->reason, "; ", weighed), promise};
  }
  return {std::nullopt, weighed, promise};
}

Action* Policy::Mutable(const std::string& id) {
  const auto found = std::ranges::find(kept_.actions, id, &Action::id);
  return found == kept_.actions.end() ? nullptr : &*found;
}

const Action* Policy::Find(const std::string& id) const { return const_cast<Policy*>(this)->Mutable(id); }

Action* Policy::Add(Action action, const View& view) {
  std::set<uint64_t> open;
  for (const Verdict& verdict : view.report->verdicts) {
    if (verdict.open) open.insert(verdict.id);
  }
  while (kept_.actions.size() >= kMaxActions) {
    // An open verdict without its action would be a new one; what is decided is remembered longest.
    const auto is_over = [&](const Action& one) { return open.count(one.verdict_id) == 0; };
    auto oldest = std::ranges::find_if(
        kept_.actions, [&](const Action& one) { return is_over(one) && one.decision == Decision::kNone; });
    if (oldest == kept_.actions.end()) oldest = std::ranges::find_if(kept_.actions, is_over);
    if (oldest == kept_.actions.end()) return nullptr;
    kept_.actions.erase(oldest);
  }
  action.id = absl::StrFormat("%016x", Mix(seed_ ^ Mix(kept_.next_id++)));
  action.time_ns = view.unix_ns;
  return &kept_.actions.emplace_back(std::move(action));
}

void Policy::Decide(Action& action, Decision decision, const View& view) {
  action.decision = decision;
  action.state = State::kDecided;
  action.time_ns = view.unix_ns;
  if (kept_.evicted.size() >= kMaxEvicted) kept_.evicted.erase(kept_.evicted.begin());
  kept_.evicted.push_back({action.id, action.node_name, view.unix_ns});
}

void Policy::CallOff(Action& action, const std::string& why) {
  action.state = State::kCalledOff;
  absl::StrAppend(&action.reason, "; called off: ", why);
}

void Policy::Release(const Action& action) {
  std::erase_if(kept_.evicted, [&](const Kept::Evicted& evicted) { return evicted.action == action.id; });
}

std::vector<std::string> Policy::Advance(const View& view) {
  std::vector<std::string> changed;
  if (options_.on_slow == OnSlow::kReport) return changed;
  std::map<uint64_t, std::string> by_verdict;
  for (const Action& action : kept_.actions) {
    if (action.verdict_id != 0) by_verdict[action.verdict_id] = action.id;
  }
  for (const Verdict& verdict : view.report->verdicts) {
    const auto found = by_verdict.find(verdict.id);
    Action* action = found == by_verdict.end() ? nullptr : Mutable(found->second);
    if (!verdict.open) {
      // A node that has left was taken out, so the order has done its work and stays. It also stays while the verdict
      // cannot be judged.
      const bool stands = action != nullptr && action->decision == Decision::kOrder && !verdict.left &&
                          !verdict.unjudged && action->state != State::kCalledOff && action->state != State::kFailed;
      // What is done for good keeps its node from being ordered again each time the verdict comes back.
      const bool lasts = action != nullptr && std::ranges::any_of(action->orders, [](const Order& order) {
                           return !CanWithdraw(order.to) && order.outcome != Outcome::kFailed;
                         });
      const bool can_withdraw = action != nullptr && std::ranges::any_of(action->orders, CanWithdraw, &Order::to);
      if (stands && (action->state != State::kDone || can_withdraw)) {
        CallOff(*action, "the verdict has cleared");
        if (!lasts) Release(*action);
        changed.push_back(action->id);
      }
      continue;
    }
    if (action != nullptr && action->decision != Decision::kNone) continue;
    const Judgement judged = Judge(verdict, view);
    if (judged.refusal == Refusal::kNotOpenLong) continue;
    if (action != nullptr && judged.refusal && action->refused_by == judged.refusal) continue;
    if (action == nullptr) {
      Action added;
      added.verdict_id = verdict.id;
      action = Add(std::move(added), view);
      if (action == nullptr) continue;
    }
    const int number = AccusedNodeOf(verdict);
    if (const Node* node = FindNode(view, number); node != nullptr) {
      action->host = node->host;
      action->node_name = node->node_name;
      action->ranks = node->ranks;
    }
    action->node = number;
    action->verdict = verdict.text;
    action->refused_by = judged.refusal;
    action->reason = judged.reason;
    action->promised = judged.promised;
    action->time_ns = view.unix_ns;
    if (!judged.refusal) Decide(*action, DecisionOf(options_.on_slow), view);
    changed.push_back(action->id);
  }
  return changed;
}

absl::StatusOr<std::string> Policy::Why(int number, const View& view) const {
  const Node* node = FindNode(view, number);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("node ", number, " is not connected"));
  const std::string called = Called(*node);
  if (options_.on_slow == OnSlow::kReport) {
    return absl::StrCat(called, ": nothing is decided with --on-slow report; rehearse decides and does nothing");
  }
  for (const Verdict& verdict : view.report->verdicts) {
    if (!verdict.open || AccusedNodeOf(verdict) != number) continue;
    const auto done = std::ranges::find_if(kept_.actions, [&](const Action& action) {
      return action.verdict_id == verdict.id && action.decision != Decision::kNone;
    });
    if (done != kept_.actions.end()) {
      std::string said = absl::StrCat(called, ": ", Name(done->decision), ", ", Name(done->state), ": ", done->reason);
      for (const Order& order : done->orders) {
        absl::StrAppend(&said, "; ", order.to, ": ", Name(order.outcome), ", ", order.text);
      }
      return said;
    }
    const Judgement judged = Judge(verdict, view);
    if (judged.refusal) return absl::StrCat(called, ": refused: ", Name(*judged.refusal), ": ", judged.reason);
    return absl::StrCat(called, ": ", Name(DecisionOf(options_.on_slow)), ": ", judged.reason);
  }
  if (view.report->state == diagnosis::JobState::kUnknown) {
    return absl::StrCat(called, ": refused: ", Name(Refusal::kCannotSay),
                        ": whether the job is slow cannot be said at the moment");
  }
  return absl::StrCat(called, ": nothing: no open verdict accuses it");
}

absl::StatusOr<Action> Policy::Evict(int number, const View& view) {
  const Node* node = FindNode(view, number);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("node ", number, " is not connected"));
  const std::string called = Called(*node);
  if (options_.on_slow == OnSlow::kReport) {
    return absl::FailedPreconditionError("--on-slow report does nothing: start the job with rehearse or order");
  }
  if (const std::optional<Judgement> refused = RefuseNode(node, called, view)) {
    return refused->refusal == Refusal::kHeld ? absl::AlreadyExistsError(refused->reason)
                                              : absl::FailedPreconditionError(refused->reason);
  }
  Action asked;
  asked.trigger = Trigger::kPerson;
  asked.node = number;
  asked.host = node->host;
  asked.node_name = node->node_name;
  asked.ranks = node->ranks;
  asked.reason = "a person has asked for it";
  Action* action = Add(std::move(asked), view);
  if (action == nullptr) return absl::ResourceExhaustedError("too many verdicts are open");
  const bool leaves = options_.on_slow == OnSlow::kReplace || options_.on_slow == OnSlow::kDrop;
  Decide(*action, leaves ? DecisionOf(options_.on_slow) : Decision::kOrder, view);
  return *action;
}

absl::Status Policy::Cancel(const std::string& id, int64_t unix_ns) {
  Action* action = Mutable(id);
  if (action == nullptr) return absl::NotFoundError(absl::StrCat("there is no action '", id.substr(0, 64), "'"));
  const bool holds = std::ranges::find(kept_.evicted, id, &Kept::Evicted::action) != kept_.evicted.end();
  const bool is_over = action->state == State::kCalledOff || action->state == State::kFailed;
  if (action->decision == Decision::kNone || (is_over && !holds)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the action is ", action->decision == Decision::kNone ? "refused" : Name(action->state), " already"));
  }
  if (!is_over) CallOff(*action, "by a person");
  Release(*action);
  action->time_ns = unix_ns;
  return absl::OkStatus();
}

std::optional<Policy::Due> Policy::NextOrder(const std::string& to) const {
  std::optional<Due> next;
  int64_t next_tried_ns = 0;
  for (const Action& action : kept_.actions) {
    if (action.decision != Decision::kOrder) continue;
    const auto order = std::ranges::find(action.orders, to, &Order::to);
    const bool begun = order != action.orders.end();
    const bool called_off = action.state == State::kCalledOff;
    bool is_due = false;
    if (called_off) {
      is_due = begun && order->outcome != Outcome::kFailed && !order->withdrawn && CanWithdraw(to);
    } else {
      // A restarted manager may have been told to send nothing.
      const bool wanted = action.trigger == Trigger::kPerson || options_.on_slow == OnSlow::kOrder;
      const bool open = action.state == State::kDecided || action.state == State::kUnderWay;
      is_due = wanted && open && (!begun || order->outcome == Outcome::kSent);
    }
    const int64_t tried_ns = begun ? order->time_ns : std::numeric_limits<int64_t>::min();
    if (!is_due || (next && tried_ns >= next_tried_ns)) continue;
    next = Due{action.id, called_off};
    next_tried_ns = tried_ns;
  }
  return next;
}

void Policy::SetOrder(const std::string& id, const Order& order, size_t receivers) {
  Action* action = Mutable(id);
  if (action == nullptr) return;
  const auto before = std::ranges::find(action->orders, order.to, &Order::to);
  if (before == action->orders.end()) {
    action->orders.push_back(order);
  } else {
    *before = order;
  }
  if (action->state == State::kCalledOff) return;
  const auto count = [&](Outcome outcome) {
    return static_cast<size_t>(std::ranges::count(action->orders, outcome, &Order::outcome));
  };
  const size_t failed = count(Outcome::kFailed);
  const size_t taken = count(Outcome::kTaken);
  action->state = failed + taken < receivers ? State::kUnderWay : taken > 0 ? State::kDone : State::kFailed;
  if (action->state != State::kFailed) return;
  Release(*action);  // Nobody has taken it, so the node is still there to be named again.
}

std::string Summary(const std::deque<Action>& actions) {
  if (actions.empty()) return "no decision yet";
  size_t decided = 0;
  size_t done = 0;
  double saved = 0;
  bool rehearsed = true;
  std::map<std::string, int> refused;
  for (const Action& action : actions) {
    if (action.decision == Decision::kNone) {
      ++refused[action.refused_by ? Name(*action.refused_by) : "none"];
      continue;
    }
    ++decided;
    rehearsed = rehearsed && action.decision == Decision::kRehearse;
    if (action.promised) {
      ++done;
      saved += action.promised->saves_rank_s - action.promised->price_rank_s;
    }
  }
  std::string text = absl::StrCat(actions.size(), actions.size() == 1 ? " decision" : " decisions");
  if (done > 0) absl::StrAppend(&text, ", ", done, rehearsed ? " would have paid " : " to pay ", ledger::Amount(saved));
  if (decided > done) absl::StrAppend(&text, ", ", decided - done, " by a person");
  for (const auto& [why, times] : refused) absl::StrAppend(&text, ", ", times, " refused: ", why);
  return text;
}

}  // namespace taskd::policy
