#include "diagnosis/why.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

const char* FeatureOf(Detector detector, OwnTime::Mode mode) {
  switch (detector) {
    case Detector::kOwnTime:
      return mode == OwnTime::Mode::kForward ? "forward" : "own_time";
    case Detector::kOwnPast:
      return "own_past";
    case Detector::kForward:
      return "forward";
    case Detector::kDataloader:
      return "dataloader";
    case Detector::kCheckpoint:
      return "save_checkpoint";
    case Detector::kTransfer:
      return "transfer";
  }
  return "";
}

class Tracer {
 public:
  Tracer(const JudgeInput& input, const std::vector<Decision>& decisions,
         const std::function<bool(const std::string& key)>& is_open, double least_rise, int rank)
      : in_(input), decisions_(decisions), is_open_(is_open), least_rise_(least_rise), rank_(rank) {}

  std::vector<DetectorTrace> Run() {
    const OwnTime::Rank& state = in_.own.rank(rank_);
    const auto peer_class = static_cast<size_t>(in_.layout.rank(rank_).peer_class);
    const OwnTime::Class& peers = in_.own.classes()[peer_class];
    const int others = peers.present - 1;
    const bool is_known = in_.own.mode() != OwnTime::Mode::kNone;
    const Thresholds& h = in_.own.thresholds();
    const bool is_forward = in_.own.mode() == OwnTime::Mode::kForward;
    if (!is_known || (is_forward && others >= 1 && others + 1 < static_cast<int>(parameters.forward_peers))) {
      AddMissing(Detector::kOwnTime, "marks of communication, or forward ranges of five ranks with the same work");
    } else if (state.own.observations() > 0) {
      Add(Detector::kOwnTime, state.slow(), h, others);
    } else {
      AddMissing(Detector::kOwnTime,
                 others < 1 ? "a rank with the same work" : "more steps, until the noise of steps is known");
    }
    if (others < 1 && peers.drift.observations() > 0) Add(Detector::kOwnPast, peers.drift, h, 0);
    if (in_.own.mode() == OwnTime::Mode::kAll) {
      AddOrMissing(Detector::kForward, *state.forward, h, others, "forward ranges of five ranks with the same work");
    }
    AddOrMissing(Detector::kDataloader, state.data, h, others, "marks of the data loader");
    AddOrMissing(Detector::kCheckpoint, *state.checkpoint, h, others, "marks of two checkpoint saves");
    if (const auto nearest = in_.transfers.NearestOf(in_.layout, rank_)) {
      Add(Detector::kTransfer, nearest->trace, nearest->raised, nearest->by_siblings ? 1 : 0);
    } else {
      AddMissing(Detector::kTransfer, "marks of communication on all members of a group");
    }
    return std::move(traces_);
  }

 private:
  void AddMissing(Detector detector, const char* needs) {
    DetectorTrace& trace = traces_.emplace_back();
    trace.feature = FeatureOf(detector, in_.own.mode());
    trace.needs = needs;
  }
  void AddOrMissing(Detector detector, const Stream& stream, const Thresholds& h, int peers, const char* needs) {
    if (stream.observations() == 0) return AddMissing(detector, needs);
    Add(detector, stream, h, peers);
  }
  void Add(Detector detector, const Stream& stream, const Thresholds& h, int peers) {
    Add(detector, stream.trace(h), stream.raised(), peers);
  }

  void Add(Detector detector, const Stream::Trace& stream, bool raised, int peers) {
    DetectorTrace& trace = traces_.emplace_back();
    trace.feature = FeatureOf(detector, in_.own.mode());
    trace.peers = peers;
    trace.value_ms = stream.measured.value() / 1e6;
    trace.reference_ms = stream.measured.reference / 1e6;
    const double whole = detector == Detector::kDataloader ? in_.period_ns : stream.measured.reference;
    trace.excess = whole > 0 ? stream.measured.excess / whole : 0;
    trace.statistic = stream.statistic;
    trace.threshold = stream.threshold;
    trace.since_step = stream.since_step;
    if (!raised) {
      trace.state = TraceState::kBelowThreshold;
      const bool by_load = detector == Detector::kOwnTime && HasLoad();
      if (by_load)
        SetVeto(trace, {Veto::kLoad});
      else
        trace.needs = Missing(detector, stream);
      return;
    }
    const Decision* decision = Find(detector);
    // Nothing was decided yet: the other ends of a transfer, or the other ranks of a node, may follow.
    const Held held = decision != nullptr ? decision->held : Held{Veto::kAttribution};
    if (!held.holds() || (decision != nullptr && !decision->key.empty() && is_open_(decision->key))) {
      trace.state = TraceState::kVerdict;
    } else {
      SetVeto(trace, held);
    }
  }

  static void SetVeto(DetectorTrace& trace, const Held& held) {
    trace.state = TraceState::kVetoed;
    trace.held = held;
    trace.needs = WriteNeeds(held);
  }

  bool HasLoad() const {
    const std::vector<Work::Load> loads = in_.own.work().loads();
    return std::any_of(loads.begin(), loads.end(), [this](const Work::Load& load) { return load.rank == rank_; });
  }

  // The last one about the rank: an accusation replaces an earlier one of the same ranks.
  const Decision* Find(Detector detector) const {
    const auto found = std::find_if(decisions_.rbegin(), decisions_.rend(), [&](const Decision& decision) {
      return decision.detector == detector && std::binary_search(decision.ranks.begin(), decision.ranks.end(), rank_);
    });
    return found == decisions_.rend() ? nullptr : &*found;
  }

  // Steps like those since the rise began; else a rise.
  std::string Missing(Detector detector, const Stream::Trace& stream) const {
    if (stream.statistic > 0 && stream.steps > 0 && stream.threshold > stream.statistic) {
      const double steps = (stream.threshold - stream.statistic) * stream.steps / stream.statistic;
      return absl::StrFormat("about %.0f more steps like the last %d", std::ceil(steps), stream.steps);
    }
    if (detector != Detector::kOwnTime || least_rise_ <= 0) return "a lasting rise";
    return absl::StrFormat("a lasting rise of %.2g %% or more", 100 * least_rise_);
  }

  const JudgeInput& in_;
  const std::vector<Decision>& decisions_;
  const std::function<bool(const std::string& key)>& is_open_;
  const double least_rise_;
  const int rank_;
  std::vector<DetectorTrace> traces_;
};

}  // namespace

std::vector<DetectorTrace> TraceDetectors(const JudgeInput& input, const std::vector<Decision>& decisions,
                                          const std::function<bool(const std::string& key)>& is_open, double least_rise,
                                          int rank) {
  return Tracer(input, decisions, is_open, least_rise, rank).Run();
}

}  // namespace taskd::diagnosis
