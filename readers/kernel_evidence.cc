#include "readers/kernel_evidence.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/median.h"
#include "common/utf8.h"

namespace taskd::readers {
namespace {

constexpr int64_t kEnoughSteps = 5;  // steps before the onset
constexpr double kLeastShare = 0.2;  // share of the excess
constexpr double kLeastRatio = 1.05;
constexpr size_t kShownBytes = 64;

}  // namespace

void KernelEvidence::AddRank(int rank, FoldedTrace& folded) {
  if (folded.kernels.empty()) return;
  Rank& known = ranks_[rank];
  known.kernels = std::move(folded.kernels);
  for (const StepFold& fold : folded.folds) {
    if (fold.previous_end_ns != 0) known.steps.push_back(fold.step);
  }
}

KernelEvidence::Mean KernelEvidence::MeanOf(const Rank& rank, const KernelTimes& kernel, int64_t first, int64_t last) {
  Mean mean;
  mean.steps = std::upper_bound(rank.steps.begin(), rank.steps.end(), last) -
               std::lower_bound(rank.steps.begin(), rank.steps.end(), first);
  for (const auto& [step, ms] : kernel.ms) {
    if (step >= first && step <= last) mean.ms += ms;
  }
  if (mean.steps > 0) mean.ms /= static_cast<double>(mean.steps);
  return mean;
}

const KernelTimes* KernelEvidence::Find(int rank, const std::string& name) const {
  const auto known = ranks_.find(rank);
  if (known == ranks_.end()) return nullptr;
  const auto kernel = std::find_if(known->second.kernels.begin(), known->second.kernels.end(),
                                   [&](const KernelTimes& other) { return other.name == name; });
  return kernel == known->second.kernels.end() ? nullptr : &*kernel;
}

void KernelEvidence::AddTo(diagnosis::Verdict& verdict, const diagnosis::Engine& engine) const {
  if (verdict.scope != diagnosis::Scope::kRank || verdict.ids.size() != 1 || verdict.evidence.empty()) return;
  const diagnosis::Evidence& own = verdict.evidence[0];
  const auto rank = ranks_.find(verdict.ids[0]);
  const double excess_ms = own.value - own.reference;
  if (own.feature != "own_time" || rank == ranks_.end() || excess_ms <= 0) return;
  const std::vector<int> peers = engine.Peers(verdict.ids[0]);

  diagnosis::Evidence most;
  for (const KernelTimes& kernel : rank->second.kernels) {
    const Mean now = MeanOf(rank->second, kernel, own.first_step, own.last_step);
    std::vector<double> theirs;
    for (int peer : peers) {
      const KernelTimes* same = peer == verdict.ids[0] ? nullptr : Find(peer, kernel.name);
      if (same != nullptr) theirs.push_back(MeanOf(ranks_.at(peer), *same, own.first_step, own.last_step).ms);
    }
    diagnosis::Evidence evidence{.feature = kernel.name, .value = now.ms, .peers = static_cast<int>(theirs.size())};
    evidence.reference = UpperMedian(theirs);
    if (theirs.empty()) {
      const Mean before = MeanOf(rank->second, kernel, std::numeric_limits<int64_t>::min(), own.first_step - 1);
      if (before.steps < kEnoughSteps) continue;
      evidence.reference = before.ms;
    }
    if (evidence.value - evidence.reference > most.value - most.reference) most = std::move(evidence);
  }
  const double share = (most.value - most.reference) / excess_ms;
  if (share < kLeastShare || most.value < kLeastRatio * most.reference) return;
  const std::string name = CutUtf8(most.feature, kShownBytes) + (most.feature.size() > kShownBytes ? "…" : "");
  most.feature = "kernel " + name;
  most.first_step = own.first_step;
  most.last_step = own.last_step;
  const std::string longer =
      most.reference > 0 ? absl::StrFormat("takes %.2f x", most.value / most.reference) : "is new";
  absl::StrAppend(&verdict.text, "; kernel ", name, " ", longer, ", ",
                  absl::StrFormat("%.0f", 100 * std::min(1.0, share)), " % of the excess");
  verdict.evidence.push_back(std::move(most));
}

}  // namespace taskd::readers
