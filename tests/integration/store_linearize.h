// Is there one order of what several clients did with one key that explains every answer they got? (Wing and Gong's
// search, with the states that were seen before left out.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "store/request.h"
#include "store_describe.h"
#include "store_reference.h"

namespace taskd::testing {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What one client did with one key.
struct KeyEvent {
  int client = 0;
  int number = 0;  // within its client: in this order
  int64_t begin_ns = 0;
  int64_t end_ns = kNever;  // for a write without reply: when the next reply came on its connection
  store::StoreOp op = store::StoreOp::kGet;
  std::vector<std::string> values;  // asked
  int64_t delta = 0;                // asked
  // The answer. A value that is nothing: the key was missing.
  int64_t answer = 0;
  std::optional<std::string> value;
};

inline std::string Describe(const KeyEvent& event) {
  return absl::StrCat(event.begin_ns / 1000, "..", event.end_ns == kNever ? -1 : event.end_ns / 1000, " us client ",
                      event.client, " #", event.number, " ", OpName(event.op), " [", Short(event.values), "] ",
                      event.delta, " -> ", event.answer, " ",
                      event.value.has_value() ? absl::StrCat("'", Short(*event.value), "'") : "none");
}

class Linearizer {
 public:
  // At most 64 events.
  explicit Linearizer(std::vector<KeyEvent> events) : events_(std::move(events)) {}

  bool Explains() {
    seen_.clear();
    return Search(0, State());
  }

 private:
  // A key's value, or the elements of a queue.
  struct State {
    std::optional<std::string> value;
    std::vector<std::string> queue;
    auto operator<=>(const State&) const = default;
  };

  bool Search(uint64_t done, const State& state) {
    const uint64_t all = events_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << events_.size()) - 1;
    if (done == all) return true;
    if (!seen_.emplace(done, state).second) return false;
    // Nothing that began after another one had ended comes before it.
    int64_t first_end = kNever;
    for (size_t i = 0; i < events_.size(); ++i) {
      if (!(done >> i & 1)) first_end = std::min(first_end, events_[i].end_ns);
    }
    for (size_t i = 0; i < events_.size(); ++i) {
      if (done >> i & 1 || events_[i].begin_ns > first_end || !FirstOfClient(done, i)) continue;
      State next = state;
      if (Apply(events_[i], next) && Search(done | uint64_t{1} << i, next)) return true;
    }
    return false;
  }

  bool FirstOfClient(uint64_t done, size_t index) const {
    for (size_t i = 0; i < events_.size(); ++i) {
      if (!(done >> i & 1) && events_[i].client == events_[index].client && events_[i].number < events_[index].number)
        return false;
    }
    return true;
  }

  // Whether the answer fits.
  static bool Apply(const KeyEvent& event, State& state) {
    switch (event.op) {
      case store::StoreOp::kSet:
        state.value = event.values[0];
        return true;
      case store::StoreOp::kAppend:
        state.value = state.value.value_or("") + event.values[0];
        return true;
      case store::StoreOp::kGet:
        return event.value == state.value;
      case store::StoreOp::kAdd: {
        const int64_t number = (state.value.has_value() ? atoll(state.value->c_str()) : 0) + event.delta;
        state.value = std::to_string(number);
        return event.answer == number;
      }
      case store::StoreOp::kCompareSet: {
        const std::string& expected = event.values[0];
        if (state.value.has_value() ? *state.value == expected : expected.empty()) state.value = event.values[1];
        return event.value == (state.value.has_value() ? *state.value : expected);
      }
      case store::StoreOp::kDelete: {
        const bool existed = state.value.has_value();
        state.value.reset();
        return event.answer == existed;
      }
      case store::StoreOp::kCheck:
        return event.answer == (state.value.has_value() || !state.queue.empty());
      case store::StoreOp::kWait:  // came back
        return state.value.has_value() || !state.queue.empty();
      case store::StoreOp::kQueuePush:
        state.queue.push_back(event.values[0]);
        return true;
      case store::StoreOp::kQueueLen:
        return event.answer == static_cast<int64_t>(state.queue.size());
      case store::StoreOp::kQueuePop: {
        if (event.answer != static_cast<int64_t>(state.queue.size())) return false;
        if (state.queue.empty()) return !event.value.has_value();
        const bool fits = event.value == state.queue.front();
        state.queue.erase(state.queue.begin());
        return fits;
      }
      default:
        return false;
    }
  }

  std::vector<KeyEvent> events_;
  std::set<std::pair<uint64_t, State>> seen_;
};

}  // namespace taskd::testing
