// What a proxy reports of a rank and what the manager keeps and answers of it; proto/node_messages.h has both as
// messages.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/switch.h"

namespace taskd {

inline constexpr int kNumMarkCounts = kNumSwitches + 1;  // by SwitchKind, then all others
inline std::string_view MarkCountName(int i) {
  return i < kNumSwitches ? SwitchKindName(static_cast<SwitchKind>(i)) : std::string_view("other");
}

// The last word of a manager that ends in order, to each node.
inline constexpr char kManagerIsEnding[] = "the manager is ending";

// That a rank has saved a checkpoint since its newest step ended. No fold tells that before the next one ends, and none
// ever does where the process ends first.
struct SavedInStep {
  int64_t step = -1;  // N of the "step N" that is under way, or comes next; -1: nothing was saved
  uint64_t ns = 0;    // that took so long

  friend bool operator==(const SavedInStep&, const SavedInStep&) = default;
};

// The innermost range that is open in a rank that has made no mark for some seconds.
struct OpenPhase {
  enum class Kind : uint8_t { kNone, kForward, kDataLoader, kCheckpoint, kCommunication };  // RankStatus.open_kind
  Kind kind = Kind::kNone;
  uint64_t since_ns = 0;  // Unix
  std::string operation;  // of kCommunication: "all_reduce"

  friend bool operator==(const OpenPhase&, const OpenPhase&) = default;
};

// taskd.v1.RankStatus.
struct RankReport {
  int rank = 0;
  int pid = 0;
  int local_rank = -1;            // -1: unknown
  bool attached = false;          // its process lives and its ring is sound
  std::string reason;             // why not attached, or why the wanted state is not applied
  uint64_t applied_revision = 0;  // of the wanted state that it has; 0: none yet
  uint64_t failed_revision = 0;   // of the wanted state that it could not apply, with the cause in `reason`; 0: none
  KindMask applied = 0;
  int64_t step = -1;  // of the newest "step N" that ended; -1: none
  double step_ms = 0;
  std::array<uint64_t, kNumMarkCounts> marks{};  // marks and ranges written to the files
  uint64_t lost = 0;
  double overhead_ns_per_mark = 0;
  uint64_t stopped_ms = 0;  // that its processes were stopped, or did not run with all of the node, while attached
  SavedInStep saved;
  uint64_t recorded = 0;  // grows with each mark, written to a file or not
  // While a rank makes no mark its process and the children of that are looked at: so long they used the CPU, and read
  // or wrote, since the proxy's start.
  uint64_t cpu_busy_ms = 0;
  uint64_t io_busy_ms = 0;
  bool left_loop = false;  // it has marked that its step loop is over, and has begun no step since
  OpenPhase open = {};

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

// taskd.v1.RankAnswer: what a rank made of one revision of the wanted state.
struct RankAnswer {
  enum class State { kUnreachable, kApplied, kFailed };
  int rank = 0;
  int node = -1;  // node rank; -1: no node has reported the rank
  State state = State::kUnreachable;
  double ms = 0;         // from the request to the answer; 0 unless kApplied
  std::string reason;    // empty when kApplied
  bool awaited = false;  // kUnreachable: by the job's size it is to come, and has never attached

  friend bool operator==(const RankAnswer&, const RankAnswer&) = default;
};

}  // namespace taskd
