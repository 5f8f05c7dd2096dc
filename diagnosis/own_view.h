// One step of one rank as the time that it spent by itself, and how far that is from what its peers spent. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/stats.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

// What there is to compare in a job.
enum class OwnMode : uint8_t {
  kNone,     // nothing
  kBulk,     // gaps between blocking operations
  kAll,      // all time outside communication: there are no blocking operations
  kForward,  // communication is not marked: the forward ranges
};

inline bool Communicates(OwnMode mode) { return mode == OwnMode::kBulk || mode == OwnMode::kAll; }

// A rank's own time of one step in two views. Gaps that are cut at every operation miss computation behind overlapped
// ones: whoever comes last seems to have done more than those whose operations ran meanwhile. Gaps between blocking
// operations only may hold a wait for an overlapped one; where there are none (kAll), the second view is the ends of the
// step, alone or with what of the gaps nobody can have hidden. A culprit is slow in both.
struct OwnView {
  int rank = 0;
  int peer_class = 0;
  double cut = 0, full = 0;  // ns; full 0: there is only one view
  double covered = 0;        // kAll: until its last operation, behind which it may have computed
  double certain = 0;        // kAll: more than its peers', of which nobody can have hidden as much
  uint32_t cut_gaps = 0, full_gaps = 0;
  double rest = 0;         // of the cut view: what is not made of gaps
  double tokens = 0;       // bytes of all-to-all
  double work_factor = 1;  // what its times were multiplied by, for work that is not its peers' (diagnosis/work.h)
  const StepFold* fold = nullptr;
};

// The ranks of one class in one step, and what is usual among them: medians.
struct PeerViews {
  std::vector<OwnView> views;
  MedianOfOthers cut_of_others, full_of_others;
  std::optional<MedianOfOthers> cpu_wait_of_others = std::nullopt;  // where it is known of most of them
  double cut_ns = 0;
  double full_ns = 0;  // 0: that view shows nothing
  double tokens = 0;   // 0: none are exchanged
  double tail_ns = 0;  // after the last operation
  double busy_ns = 0;  // that the device computed; 0: unknown

  // Of the two views the one that others' lateness does not change.
  double reference_ns() const { return full_ns > 0 ? full_ns : cut_ns; }
};

// Logarithms of a rank's time over that of the others.
struct Deviation {
  double judged = 0;  // in the view where it is smaller, less what the rank's tokens explain
  double unrest = 0;  // what its noise is measured by
  double own_ns = 0;  // in the view that is shown
  double reference_ns = 0;
};

OwnMode ChooseMode(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds);

// None: the fold has too many lost marks, or nothing of its own. Keeps where the fold is.
std::optional<OwnView> MakeView(const Layout& layout, int rank, const StepFold& fold, OwnMode mode);

// Makes up for lost gaps, and takes the medians. `views` is not empty.
PeerViews ComparePeers(std::vector<OwnView> views, OwnMode mode);

Deviation DeviationOf(const PeerViews& peers, size_t index, OwnMode mode);

}  // namespace taskd::diagnosis
