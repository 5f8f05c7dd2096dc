// What the rules of baselines.h say of a folder of real marks: baseline_claims TASK_FOLDER; JSON on stdout. For
// tests/diagnosis/real_faults.py.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "marks/mark_file_reader.h"
#include "marks/mark_fold.h"
#include "marks/parallel_group.h"
#include "readers/mark_directory.h"
#include "tests/diagnosis/baselines.h"
#include "tests/diagnosis/metrics.h"

namespace {

using taskd::StepFold;
using taskd::evaluation::Baseline;
using taskd::evaluation::Claim;
using taskd::evaluation::ClaimTracker;
using taskd::evaluation::RankFold;
using taskd::evaluation::Topology;

struct Folds {
  std::map<int64_t, std::map<int, StepFold>> by_step;
  Topology topology;  // as known at the end: no group of these jobs changes
};

absl::Status FoldRank(const taskd::readers::RankMarks& marks, Folds& folds) {
  taskd::MarkFold fold([&](StepFold&& step) { folds.by_step[step.step][marks.rank] = std::move(step); });
  auto groups = taskd::ReadParallelGroups(marks.folder + "/parallel_group.json");
  if (groups.ok()) fold.SetGroups(*groups);
  auto reader = taskd::MarkFileReader::Open(marks.folder);
  if (!reader.ok()) return reader.status();
  for (taskd::MarkRecord record; reader->Next(record);) fold.Add(record);
  fold.Finish();
  for (size_t i = 0; i < fold.groups().size(); ++i) {
    folds.topology.SetGroup(marks.rank, static_cast<uint32_t>(i), fold.groups()[i]);
  }
  return reader->status();
}

nlohmann::json Judge(Baseline& baseline, const Folds& folds, const std::vector<int>& nodes) {
  ClaimTracker tracker;
  for (const auto& [step, by_rank] : folds.by_step) {
    std::vector<RankFold> ranks;
    for (const auto& [rank, fold] : by_rank) ranks.emplace_back(rank, &fold);
    baseline.Step(step, ranks, folds.topology);
    tracker.Observe(static_cast<int>(step), baseline.verdicts(), nodes);
  }
  nlohmann::json claims = nlohmann::json::array();
  for (const Claim& claim : tracker.claims()) {
    if (claim.ranks.empty()) continue;  // the whole job: nobody is named
    claims.push_back({{"ranks", claim.ranks},
                      {"cause", taskd::diagnosis::Name(claim.verdict.cause)},
                      {"opened", claim.opened},
                      {"since_step", claim.verdict.since_step}});
  }
  return claims;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends with one that nobody expects
  if (argc != 2) {
    std::fputs("baseline_claims TASK_FOLDER\n", stderr);
    return 2;
  }
  auto directory = taskd::readers::ListMarkDirectory(argv[1]);
  if (!directory.ok()) {
    std::fprintf(stderr, "baseline_claims: %s\n", std::string(directory.status().message()).c_str());
    return 2;
  }
  Folds folds;
  for (const taskd::readers::RankMarks& marks : directory->ranks) {
    absl::Status status = FoldRank(marks, folds);
    if (status.ok()) continue;
    std::fprintf(stderr, "baseline_claims: rank %d: %s\n", marks.rank, std::string(status.message()).c_str());
    return 1;
  }
  const std::vector<int> nodes(static_cast<size_t>(directory->ranks.back().rank) + 1, 0);
  nlohmann::json detectors = nlohmann::json::object();
  for (const std::unique_ptr<Baseline>& baseline : taskd::evaluation::MakeBaselines()) {
    detectors[baseline->name()] = Judge(*baseline, folds, nodes);
  }
  std::printf("%s\n", detectors.dump().c_str());
  return 0;
}
