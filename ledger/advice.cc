#include "ledger/advice.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace taskd::ledger {
namespace {

constexpr double kNormal95 = 1.6448536269514722;  // 95 % quantile of the standard normal distribution

// The quantile of chi-squared for the normal quantile `z` (E. B. Wilson, M. M. Hilferty 1931). From 2 degrees of
// freedom on, the error at 95 % is below 1 %.
double ChiSquared(double z, double degrees) {
  const double part = 2 / (9 * degrees);
  return degrees * std::pow(1 - part + z * std::sqrt(part), 3);
}

std::string Duration(double s) {
  if (s < 10) return absl::StrFormat("%.1f s", s);
  if (s < 120) return absl::StrFormat("%.0f s", s);
  if (s < 7200) return absl::StrFormat("%.0f min", s / 60);
  return absl::StrFormat("%.1f h", s / 3600);
}

// The average number of slots over the job's lifetime.
double SlotsOf(const Report& report) { return report.wall_s() > 0 ? report.rank_s / report.wall_s() : 0; }

// The job's time in which a failure would have cost steps.
double TrainedS(const Report& report) {
  const Seconds seconds = report.seconds();
  double rank_s = 0;
  for (Category category : {Category::kWarmUp, Category::kProductive, Category::kData, Category::kCheckpoint,
                            Category::kStraggler, Category::kOther, Category::kRedone, Category::kUnmarked}) {
    rank_s += At(seconds, category);
  }
  return rank_s / SlotsOf(report);
}

// Counts the failures after which ranks started again; ordered restarts are no failures.
uint64_t FailuresOf(const Report& report) {
  const std::array<uint64_t, kIncidentKinds> counts = report.incident_counts();
  uint64_t failures = 0;
  for (IncidentKind kind :
       {IncidentKind::kRankExit, IncidentKind::kNodeLost, IncidentKind::kRequeue, IncidentKind::kEviction}) {
    failures += counts[static_cast<size_t>(kind)];
  }
  for (const Incident& incident : report.incidents) {
    if (incident.kind == IncidentKind::kHang && At(incident.seconds, Category::kRestart) > 0) ++failures;
  }
  return failures;
}

std::optional<Advice> OnCheckpoints(const Report& report) {
  const uint64_t failures = FailuresOf(report);
  const double trained_s = TrainedS(report), checkpoints = static_cast<double>(report.measured.checkpoints);
  if (failures < kFewest || checkpoints < 2 || !(report.measured.checkpoint_s > 0)) return std::nullopt;
  const double save_s = report.measured.checkpoint_s / checkpoints;
  const double now_s = trained_s / checkpoints;
  const double apart_s = trained_s / static_cast<double>(failures);
  const CheckpointInterval best = YoungDaly(save_s, trained_s, failures);
  if (now_s >= best.low_s && now_s <= best.high_s) return std::nullopt;
  const auto cost = [&](double every_s) { return save_s / every_s + every_s / (2 * apart_s); };
  return Advice{
      "checkpoint_interval",
      absl::StrCat("save a checkpoint every ", Duration(best.best_s), " (", Duration(best.low_s), " to ",
                   Duration(best.high_s), "), not every ", Duration(now_s), ": a save takes ", Duration(save_s),
                   ", and ", failures, " failures came ", Duration(apart_s), " of training apart"),
      (cost(now_s) - cost(best.best_s)) * trained_s * SlotsOf(report)};
}

std::optional<Advice> OnStarts(const Report& report, Category category, const char* what) {
  const auto starts = static_cast<double>(report.measured.starts);
  const double rank_s = At(report.seconds(), category), slots = SlotsOf(report);
  if (starts < 1 || !(slots > 0)) return std::nullopt;
  return Advice{Name(category),
                absl::StrCat(what, " took ", Duration(rank_s / slots / starts), " a start, in ", report.measured.starts,
                             report.measured.starts == 1 ? " start" : " starts"),
                rank_s - kShortS * starts * slots};
}

// Returns the incident with the largest cost in the category; null if none has a cost in it.
const Incident* DearestIn(const Report& report, Category category) {
  const Incident* dearest = nullptr;
  double most_s = 0;
  for (const Incident& incident : report.incidents) {
    const double rank_s = At(incident.seconds, category);
    if (rank_s <= most_s) continue;
    most_s = rank_s;
    dearest = &incident;
  }
  return dearest;
}

std::optional<Advice> OnData(const Report& report) {
  const double rank_s = At(report.seconds(), Category::kData);
  std::string text =
      absl::StrFormat("the job waited for the data loader for %.1f %% of the time", 100 * rank_s / report.rank_s);
  const Incident* of = DearestIn(report, Category::kData);
  if (of != nullptr && At(of->seconds, Category::kData) >= rank_s / 2) {
    absl::StrAppend(&text, ", most of it because of #", of->number, ": ", of->text);
  } else {
    text += ": its workers, or where the data lies";
  }
  return Advice{"data", std::move(text), rank_s};
}

std::optional<Advice> OnStraggler(const Report& report) {
  const Incident* dearest = DearestIn(report, Category::kStraggler);
  if (dearest == nullptr) return std::nullopt;
  return Advice{"straggler",
                absl::StrCat("the straggler that has cost most is #", dearest->number, ": ", dearest->text),
                At(dearest->seconds, Category::kStraggler)};
}

}  // namespace

CheckpointInterval YoungDaly(double save_s, double trained_s, uint64_t failures) {
  const auto n = static_cast<double>(failures);
  const auto best = [&](double apart_s) { return std::sqrt(2 * save_s * apart_s); };
  return {best(trained_s / n), best(2 * trained_s / ChiSquared(kNormal95, 2 * n + 2)),
          best(2 * trained_s / ChiSquared(-kNormal95, 2 * n))};
}

std::vector<Advice> AdviceOf(const Report& report) {
  std::vector<Advice> advice;
  if (!(report.rank_s > 0) || !(report.wall_s() > 0)) return advice;
  for (std::optional<Advice> one :
       {OnCheckpoints(report),
        OnStarts(report, Category::kLinkUp, "linking up, from a process's first sign to its first step,"),
        OnStarts(report, Category::kLaunch, "starting a process, until its first sign (imports, mostly),"),
        OnData(report), OnStraggler(report)}) {
    if (one && one->saves_rank_s >= kWorth * report.rank_s) advice.push_back(*std::move(one));
  }
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Advice& a, const Advice& b) { return a.saves_rank_s > b.saves_rank_s; });
  return advice;
}

}  // namespace taskd::ledger
