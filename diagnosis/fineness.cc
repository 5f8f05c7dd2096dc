#include "diagnosis/fineness.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>

#include "diagnosis/bar.h"

namespace taskd::diagnosis {
namespace {

constexpr int kMostSteps = 512;      // that a rise is said to be told in
constexpr int kMostAwaited = 10000;  // steps: what would take longer is as good as never told

// The smallest one that would have been told; of the logarithm.
struct RankRise {
  int rank;
  double rise;
  int steps;
  friend bool operator<(const RankRise& a, const RankRise& b) {
    return std::tie(a.rise, a.rank) < std::tie(b.rise, b.rank);
  }
};

// Reorders them; there is one at least.
RankRise LowerMedianOf(std::vector<RankRise>& rises) {
  const auto middle = rises.begin() + static_cast<std::ptrdiff_t>((rises.size() - 1) / 2);
  std::nth_element(rises.begin(), middle, rises.end());
  return *middle;
}

std::optional<Resolution> Summarize(std::vector<RankRise>& rises) {
  std::erase_if(rises, [](const RankRise& rise) { return !std::isfinite(rise.rise) || rise.steps == 0; });
  if (rises.empty()) return std::nullopt;
  const RankRise typical = LowerMedianOf(rises);
  const RankRise& worst = *std::max_element(rises.begin(), rises.end());
  return Resolution{std::expm1(typical.rise), typical.steps, worst.rank, std::expm1(worst.rise)};
}

class Finder {
 public:
  explicit Finder(const JudgeInput& input)
      : in_(input), bar_(input.period_ns, input.min_cost_share, HasDevice(input), input.is_over) {
    for (const std::vector<int>& ranks : in_.layout.classes()) {
      peers_.push_back(
          static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [this](int rank) { return IsPresent(rank); })));
    }
  }

  Fineness Find() const {
    Fineness found;
    std::vector<RankRise> own, data;
    std::vector<double> noise;
    found.own_time_of_ranks.resize(static_cast<size_t>(in_.own.size()));
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (!IsPresent(rank) || !in_.layout.known(rank)) continue;
      if (const auto steps = StepsOf(in_.own.rank(rank).own, rank); const auto rise = OwnRise(rank, steps)) {
        own.push_back({rank, rise->rise, steps});
        noise.push_back(rise->noise);
        found.own_time_of_ranks[static_cast<size_t>(rank)] = std::isfinite(rise->rise) ? std::expm1(rise->rise) : 0;
      }
      if (const auto steps = StepsOf(in_.own.rank(rank).data, rank); const auto rise = DataRise(rank, steps)) {
        data.push_back({rank, std::log1p(*rise), steps});
      }
    }
    found.own_time = Summarize(own);
    found.dataloader = Summarize(data);
    std::vector<RankRise> transfers;
    for (const Transfers::Fineness& channel : in_.transfers.FinenessOf(in_.layout, kMostSteps)) {
      transfers.push_back({channel.rank, channel.rise, channel.steps});
    }
    found.transfer = Summarize(transfers);
    if (own.empty()) return found;
    found.own_noise = LowerMedian(noise);
    found.more_steps = StepsUntilTenth(LowerMedianOf(own));
    return found;
  }

 private:
  static bool HasDevice(const JudgeInput& in) {
    for (int rank = 0; rank < in.own.size(); ++rank) {
      if (in.own.rank(rank).has_device && in.is_present(rank)) return true;
    }
    return false;
  }

  bool IsPresent(int rank) const { return rank < in_.own.size() && in_.is_present(rank); }
  int StepsOf(const Stream& stream, int rank) const {
    const OwnTime::Class& peers = in_.own.classes()[ClassOf(rank)];
    return std::min(kMostSteps, (PeersOf(rank) < 2 ? peers.drift : stream).observations());
  }
  size_t ClassOf(int rank) const { return static_cast<size_t>(in_.layout.rank(rank).peer_class); }
  // Itself among them. Those that are there, whatever the last step has of them.
  int PeersOf(int rank) const { return peers_[ClassOf(rank)]; }

  std::optional<OwnTime::Fineness> OwnRise(int rank, int steps) const {
    std::optional<OwnTime::Fineness> fine =
        in_.own.OwnFineness(in_.layout, rank, static_cast<size_t>(PeersOf(rank)), steps);
    const double reference_ns = in_.own.rank(rank).own_reference_ns;
    if (!fine || reference_ns <= 0 || steps == 0) return std::nullopt;
    const double lasted_ns = steps * in_.period_ns;
    fine->rise = bar_.LeastOwnRise(PeersOf(rank), *fine, reference_ns, lasted_ns);
    if (const std::optional<OwnTime::Fineness> on_cpu = in_.own.OnCpuFineness(rank, steps)) {
      fine->rise = std::min(fine->rise, bar_.LeastOnCpuRise(*on_cpu, reference_ns, lasted_ns));
    }
    return fine;
  }
  std::optional<double> DataRise(int rank, int steps) const {
    const std::optional<OwnTime::Fineness> fine = in_.own.DataFineness(rank, steps);
    if (!fine || steps == 0) return std::nullopt;
    return bar_.LeastDataRise(PeersOf(rank), *fine, steps * in_.period_ns);
  }

  // More steps, about, until a tenth can be told of one like this.
  int StepsUntilTenth(const RankRise& now) const {
    for (int steps = std::max(1, now.steps); steps < kMostAwaited; steps += steps / 4 + 1) {
      const std::optional<OwnTime::Fineness> rise = OwnRise(now.rank, steps);
      if (rise && std::expm1(rise->rise) <= 0.1) return steps - now.steps;
    }
    return 0;
  }

  const JudgeInput& in_;
  const Bar bar_;
  std::vector<int> peers_;  // by class
};

}  // namespace

Fineness FindFineness(const JudgeInput& input) { return Finder(input).Find(); }

}  // namespace taskd::diagnosis
