// Decides what to do about slow nodes: verdicts with their cost, the price of a restart, the nodes, what was decided before
// and the time come in; actions come out, each with its reason.
//
// Design:
// 1. Each verdict gets at most one action, once it has been open for When::open_steps. While it is refused it is judged
//    again at each Advance, and the action says what became of it; once something is decided, that stays.
// 2. The reasons against an action are looked for in the order of Refusal, and the first one counts. What the operator
//    asked for (paused, budget) comes last, so the list shows what would have paid.
// 3. An order says one name. So a verdict that names ranks of several nodes is a verdict about the job.
// 4. Nothing that a rank reports of itself can accuse another one: the node is the verdict's, and it may only be named by
//    a name that is certain (ManagerCore::Identify).
//
// Pure: no I/O, no threads, time comes in. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "diagnosis/verdict.h"
#include "policy/action.h"
#include "policy/options.h"
#include "policy/price.h"

namespace taskd::policy {

struct Node {
  int node = 0;  // its rank
  std::string host;
  std::string node_name;  // empty: none that may be used
  std::string refusal;    // then why
  std::array<int, 2> ranks = {-1, -1};

  friend bool operator==(const Node&, const Node&) = default;
};

// The job at one moment.
struct View {
  int64_t unix_ns = 0;
  const diagnosis::Report* report = nullptr;  // with its verdicts' nodes; never null
  std::vector<Node> nodes;                    // that are connected
  Price price;
  double ran_s = 0;      // since the job began
  double attempt_s = 0;  // since this attempt of it began: Options::remaining_h counts from there
  int slots = 0;         // ranks of the job
  int spares = 0;        // that stand by
  int least_nodes = 0;   // that the job needs; 0: all
};

class Policy {
 public:
  static constexpr size_t kMaxActions = 200;
  static constexpr size_t kMaxEvicted = 4096;  // of which more are refused as `budget`

  // What a later policy goes on from.
  struct Kept {
    bool paused = false;
    bool did_not_help = false;
    uint64_t next_id = 1;
    struct Evicted {
      std::string action;
      std::string node_name;
      int64_t time_ns = 0;  // Unix
      friend bool operator==(const Evicted&, const Evicted&) = default;
    };
    std::vector<Evicted> evicted;  // decided, and not called off or done all the same; oldest first
    std::deque<Action> actions;    // oldest first

    friend bool operator==(const Kept&, const Kept&) = default;
  };

  // `seed`: makes ids differ between jobs.
  Policy(Options options, uint64_t seed, Kept kept);

  // Judges all verdicts. The actions that are new or have changed, by id, in order.
  std::vector<std::string> Advance(const View& view);

  // What would be done about the node now, and why. NOT_FOUND: there is no such node.
  absl::StatusOr<std::string> Why(int node, const View& view) const;

  // A person's decision: it needs neither a verdict nor a gain, and counts in the budget. With kRehearse it is an order.
  // FAILED_PRECONDITION: the node cannot be named, or goes against `--on-slow`. NOT_FOUND: there is no such node.
  // ALREADY_EXISTS: it was decided.
  absl::StatusOr<Action> Evict(int node, const View& view);
  // Calls an action off; its node may be decided on again. NOT_FOUND: there is none. FAILED_PRECONDITION: there is nothing to
  // call off.
  absl::Status Cancel(const std::string& id, int64_t unix_ns);
  void Pause() { kept_.paused = true; }
  void Allow() { kept_.paused = kept_.did_not_help = false; }

  struct Due {
    std::string id;
    bool withdraw = false;
    friend bool operator==(const Due&, const Due&) = default;
  };
  // An order that the receiver has to get, or get back; empty: none. Of several the one that was tried least recently, so that
  // none holds up the others.
  std::optional<Due> NextOrder(const std::string& to) const;
  // What became of the action's order to one receiver, of all that it goes to.
  void SetOrder(const std::string& id, const Order& order, size_t receivers);

  const Action* Find(const std::string& id) const;  // null: there is none
  const Kept& kept() const { return kept_; }
  const Options& options() const { return options_; }
  double RemainingS(const View& view) const;

 private:
  struct Judgement {
    std::optional<Refusal> refusal;
    std::string reason;
    std::optional<Promise> promised;
  };
  Judgement Judge(const diagnosis::Verdict& verdict, const View& view) const;
  // Whether the node can be acted on at all, whatever for.
  std::optional<Judgement> RefuseNode(const Node* node, const std::string& called, const View& view) const;
  std::optional<Judgement> RefuseByOperator(const View& view) const;
  // Null: there is no room, because all that is listed is about open verdicts.
  Action* Add(Action action, const View& view);
  void Decide(Action& action, Decision decision, const View& view);
  void CallOff(Action& action, const std::string& why);
  // The node may be decided on again.
  void Release(const Action& action);
  bool IsHeld(const std::string& node_name) const;
  Action* Mutable(const std::string& id);

  const Options options_;
  const uint64_t seed_;
  Kept kept_;
};

// "3 decisions, 2 would have paid 41 rank-hours, 1 refused: does_not_pay"; "no decision yet" of none.
std::string Summary(const std::deque<Action>& actions);

}  // namespace taskd::policy
