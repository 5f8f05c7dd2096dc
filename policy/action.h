// What is decided about a slow node, as types (docs/acting.md). An action is a record of one decision, also of the
// decision to do nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/order_to.h"

namespace taskd::policy {

enum class OnSlow : uint8_t { kReport, kRehearse, kOrder, kReplace, kDrop };
enum class Decision : uint8_t { kNone, kRehearse, kOrder, kReplace, kDrop };
enum class Trigger : uint8_t { kVerdict, kHang, kFailures, kPerson };
enum class State : uint8_t { kDecided, kWaiting, kUnderWay, kDone, kCalledOff, kFailed };
enum class Outcome : uint8_t { kSent, kTaken, kFailed };
// Why nothing is done, in the order in which the reasons are looked for.
enum class Refusal : uint8_t {
  kNotOpenLong,
  kCannotSay,
  kScope,
  kCause,
  kConfidence,
  kCost,
  kHeld,
  kNoNodeName,
  kNodeZero,
  kNoSpare,
  kTooFewNodes,
  kDoesNotPay,
  kPaused,
  kDidNotHelp,
  kBudget,
};
inline constexpr size_t kRefusals = 15;
inline constexpr size_t kDecisions = 5;

// As in the JSON: "not_open_long", "called_off", ...
const char* Name(OnSlow value);
const char* Name(Decision value);
const char* Name(Trigger value);
const char* Name(State value);
const char* Name(Outcome value);
const char* Name(Refusal value);

// The value that is called `name`; empty: none is.
template <typename Enum>
std::optional<Enum> FromName(const std::string& name, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (name == Name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

struct Promise {
  double saves_ms_per_step = 0;
  int64_t steps = 0;  // that remain
  double saves_rank_s = 0, price_rank_s = 0;

  friend bool operator==(const Promise&, const Promise&) = default;
};

// An order to one receiver.
struct Order {
  std::string to;
  int64_t time_ns = 0;               // Unix; of the last change
  Outcome outcome = Outcome::kSent;  // kSent also before it is sent for the first time, and while it is tried again
  std::string text;
  bool withdrawn = false;  // or it cannot be; `text` says which

  friend bool operator==(const Order&, const Order&) = default;
};

// Whether an order that was taken can be taken back from the receiver.
inline bool CanWithdraw(const std::string& to) { return to != Name(OrderTo::Kind::kCommand); }

struct Action {
  std::string id;
  int64_t time_ns = 0;  // Unix; of the decision
  Trigger trigger = Trigger::kVerdict;
  uint64_t verdict_id = 0;  // 0: of no verdict
  int node = -1;            // its rank; -1: no single node
  std::string host, node_name;
  std::array<int, 2> ranks = {-1, -1};  // the first and the last of the node
  std::string verdict;                  // its sentence
  Decision decision = Decision::kNone;
  std::optional<Refusal> refused_by;
  std::string reason;  // one sentence
  State state = State::kDecided;
  std::optional<Promise> promised;
  std::vector<Order> orders;

  friend bool operator==(const Action&, const Action&) = default;
};

}  // namespace taskd::policy
