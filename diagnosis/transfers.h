// How long transfers take, by channel: a process group's collectives, or one pair of ranks. A transfer's time is the
// shortest duration of an operation over its members: the last one to arrive waits for nobody.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/step_fold.h"
#include "diagnosis/layout.h"
#include "diagnosis/stats.h"
#include "diagnosis/stream.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// What the transfers accuse.
struct TransferFinding {
  Scope scope = Scope::kGroup;
  std::vector<int> ids;
  std::vector<Link> links;
  std::vector<Alternative> alternatives;
  Cause cause = Cause::kNetwork;
  int64_t onset = 0;
  double ratio = 1;     // transfer time / reference
  double value_ms = 0;  // of one operation
  double reference_ms = 0;
  double excess_ns = 0;  // per step, of the worst rank
  int peers = 0;         // sibling channels; 0: its own past is the reference
  double z = 0;
  bool intermittent = false;
  bool blocking = false;  // computation waits for it, whatever overlaps
  double confidence = 0;
};

class Transfers {
 public:
  // The folds of one judged step, by rank. `h` for the streams there are.
  void Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step,
               double arl_factor);
  // The layout has changed: channels are other ones.
  void Forget();

  // Present accusations, the heaviest first; empty while the evidence may still point elsewhere.
  std::vector<TransferFinding> Findings(const Layout& layout) const;

 private:
  static constexpr int kRecent = 8;
  struct Channel {
    int group = -1;
    int a = -1, b = -1;  // of a pair: sender, receiver; -1: a collective's
    CommOp op = CommOp::kOther;
    uint8_t size_log2 = 0;
    int sibling_class = -1;

    // Of the step under way.
    int64_t step = -1;
    int reporters = 0;
    uint32_t count = 0;
    uint64_t min_ns = 0;
    double bytes = 0;  // of one operation, on the member with the most

    // Over steps.
    double level = 0;  // of the own past: log ns
    int seen = 0;
    double last = 0;
    bool has_last = false;
    Stream past;                          // against the own past
    Stream siblings;                      // against channels of the same kind
    std::array<float, kRecent> recent{};  // deviations of the last steps
    std::array<float, kRecent> recent_siblings{};
    double typical_ns = 0;
  };
  // One channel of communication whatever the operations: what an entity covers.
  struct Line {
    int group = -1;
    int a = -1, b = -1;
    bool inter_node = false;
    bool blocking = false;
    std::vector<int> members;
    const Channel* worst = nullptr;
    double support = 0;    // log likelihood that it is slower against that it is not
    double excess_ns = 0;  // per step, of all its operations
  };

  static double LogTime(const Channel& channel);
  // Operations of a rank come in the same order in most steps: where they were found last.
  struct Found {
    uint64_t key = ~uint64_t{0};
    int id = -1;
  };
  static uint64_t KeyOf(const OpFold& op);
  int FindAgain(const Layout& layout, int rank, size_t index, const OpFold& op);
  int Find(const Layout& layout, int rank, const OpFold& op);
  void Judge(const Layout& layout, const std::vector<int>& touched, int64_t step, double arl_factor);

  std::vector<std::vector<Found>> found_;  // by rank and index of the operation
  std::vector<Channel> channels_;
  absl::flat_hash_map<uint64_t, int> ids_;
  std::map<std::vector<int>, int> sibling_ids_;
  std::vector<NoisePool> noise_;  // by sibling class
};

}  // namespace taskd::diagnosis
