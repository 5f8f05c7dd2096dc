// How long transfers take, by channel: a process group's collectives, or one pair of ranks. A transfer's time is the
// shortest duration of an operation over its members: the last one to arrive waits for nobody.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "diagnosis/explanation.h"
#include "diagnosis/layout.h"
#include "diagnosis/stats.h"
#include "diagnosis/stream.h"
#include "diagnosis/verdict.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

// What the transfers accuse.
struct TransferFinding {
  Scope scope = Scope::kGroup;
  std::vector<int> ids;
  std::vector<Link> links;
  std::vector<Alternative> alternatives;
  Cause cause = Cause::kNetwork;
  int64_t onset = 0;
  bool from_start = false;   // as Stream::from_start()
  Measured::Means measured;  // of the slowest channel's operations of a step
  uint32_t count = 1;        // of them
  double excess_ns = 0;      // per step, of the worst rank
  int peers = 0;             // sibling channels; 0: its own past is the reference
  double z = 0;
  double error = 0;  // standard error of excess_ns, as a share of it
  bool intermittent = false;
  bool fading = false;    // all of them are on the way to what they were
  bool blocking = false;  // computation waits for it, whatever overlaps
  int lines = 0;          // groups and pairs whose transfers were compared, all in all
  double confidence = 0;
};

class Transfers {
 public:
  // One fold of a step that is judged.
  void Take(const Layout& layout, int rank, const StepFold& fold, int64_t step);
  // Once all folds of the step were taken.
  void Observe(int64_t step, double arl_factor);
  // The layout has changed. What is known of a group's transfers stays, also when its members have become known.
  void Regroup(const Layout& layout);
  // What was normal is no more.
  void Forget();

  // Groups' and pairs' transfers, by kind and size, that are watched: at most 2,048 that one rank brought.
  size_t channels() const { return channels_.size(); }
  // As Stream::SmallestRise (log) of each channel that was seen lately, with its first member.
  struct Fineness {
    int rank = 0;
    double rise = 0;
    int steps = 0;
  };
  std::vector<Fineness> FinenessOf(const Layout& layout, int most_steps) const;
  // Of the channels that the rank takes part in, the one that is nearest to a verdict: what it decided last. None: there is
  // none, or none was compared.
  struct Nearest {
    Stream::Trace trace;
    bool raised = false;
    bool by_siblings = false;  // not by the own past
  };
  std::optional<Nearest> NearestOf(const Layout& layout, int rank) const;
  // Present accusations, the heaviest first; empty while the evidence may still point elsewhere.
  std::vector<TransferFinding> Findings(const Layout& layout) const;

 private:
  static constexpr int kRecent = 8;
  struct Channel {
    int group = -1;
    int a = -1, b = -1;  // of a pair: sender, receiver; -1: a collective's
    CommOp op = CommOp::kOther;
    uint8_t size_log2 = 0;
    int brought_by = -1;  // the first rank that reported it
    int sibling_class = -1;

    // Over steps.
    double level = 0;  // of the own past: log ns
    int seen = 0;
    double last = 0;
    bool has_last = false;
    Stream past;                          // against the own past
    Stream siblings;                      // against channels of the same kind
    std::array<float, kRecent> recent{};  // deviations of the last steps
    std::array<float, kRecent> recent_siblings{};
    uint32_t count = 0;  // operations of the last step
  };
  // What a channel has in the step under way, or had in its last one. Apart from the rest: each operation of each rank
  // comes by here.
  struct Now {
    int64_t step = -1;
    uint64_t min_ns = 0;
    float bytes = 0;  // of one operation of an all-to-all, on the member with the most
    uint32_t count = 0;
    int reporters = 0;
    int members = 0;
  };
  // The strongest channel that is raised: what to expect on the others.
  struct Lead {
    const Channel* channel = nullptr;
    bool past = false;  // against its own past, not its siblings
    double mean = 0;    // of the deviation
    int64_t onset = 0;
    int window = 0;      // steps of it to look at, at most kRecent
    int64_t newest = 0;  // the last step that any channel was seen in
  };
  // What one line has of its channels.
  struct Heaviest {
    const Channel* channel = nullptr;  // with the most support
    double excess_ns = 0;              // per step, of all of them
  };
  // Lines of communication, and by the same indexes what their channels have measured.
  struct Lines {
    std::vector<Line> lines;
    std::vector<Heaviest> heaviest;
  };
  // What the judged channels of one sibling class have in one step.
  struct ClassStep {
    std::vector<double> times;  // LogTime
    double reference = 0;       // their median
    size_t size = 0;
    StreamTails past, siblings;
    Stream::Limits past_limits, sibling_limits;  // with what depends on the tails, of one stream after the other
  };

  struct Noise {
    NoisePool steps;
    ScaleNoise past, siblings;
  };

  // A channel all of whose members were heard.
  struct Judged {
    int id = 0;
    double log_time = 0;
  };

  static double LogTime(const Channel& channel, const Now& now);
  static int MembersOf(const Layout& layout, const Channel& channel);
  // Operations of a rank come in the same order in most steps: where they were found last.
  struct Cached {
    uint64_t key = ~uint64_t{0};
    int id = -1;
  };
  static uint64_t KeyOf(const OpFold& op);
  int FindCached(const Layout& layout, int rank, size_t index, const OpFold& op);
  int FindChannel(const Layout& layout, int rank, const OpFold& op);
  static uint64_t KeyOf(const Channel& channel);
  int SiblingClass(const Layout& layout, const Channel& channel);
  static bool AddToStep(Now& now, const OpFold& op, int64_t step);
  std::vector<Judged> TakeComplete(std::vector<ClassStep>& classes);
  void SetLimits(std::vector<ClassStep>& classes);
  Stream::Limits LimitsOf(const Noise& noise, const ScaleNoise& blocks, double dead) const;
  void JudgeChannel(const Judged& judged, ClassStep& siblings, int64_t step);

  int64_t NewestStep() const;
  std::optional<Lead> FindLead() const;
  static const Stream& StreamOf(const Channel& channel, const Lead& lead);
  Lines CollectLines(const Layout& layout, const Lead& lead) const;
  static Line MakeLine(const Layout& layout, const Channel& channel);
  double Support(const Channel& channel, const Lead& lead) const;
  TransferFinding Measure(const Explanation& explanation, const Lines& lines, const Lead& lead) const;

  std::vector<std::vector<Cached>> cache_;  // by rank and index of the operation
  std::deque<Channel> channels_;            // grows without being copied, and holds no room for as many again
  std::vector<Now> now_;                    // by the same indexes
  std::vector<int> touched_;                // that have an operation in the step under way
  size_t raised_ = 0;                       // streams: as a rule none is, and nobody needs to look for it
  std::vector<size_t> brought_;             // channels, by the rank that brought them
  absl::flat_hash_map<uint64_t, int> ids_;
  std::map<std::vector<int>, int> sibling_ids_;
  std::vector<Noise> noise_;  // by sibling class
  Thresholds thresholds_{};   // of the last step
};

}  // namespace taskd::diagnosis
