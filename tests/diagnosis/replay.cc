#include "tests/diagnosis/replay.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/simulate/faults.h"
#include "diagnosis/engine.h"
#include "diagnosis/render.h"
#include "tests/diagnosis/baselines.h"
#include "tests/diagnosis/tape.h"

namespace taskd::evaluation {
namespace {

double Seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Adds the thread's CPU time of its own life to a sum.
class Meter {
 public:
  explicit Meter(double* sum) : sum_(sum), begin_(Seconds(CLOCK_THREAD_CPUTIME_ID)) {}
  ~Meter() { *sum_ += Seconds(CLOCK_THREAD_CPUTIME_ID) - begin_; }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  double* sum_;
  double begin_;
};

class Player {
 public:
  Player(const ReplayOptions& options, CaseResult& result) : dump_(options.dump), result_(result) {
    result.detectors.emplace_back().name = "TaskD";
    if (!options.engine_only) baselines_ = MakeBaselines();
    for (const auto& baseline : baselines_) result.detectors.emplace_back().name = baseline->name();
    trackers_.resize(result.detectors.size());
  }

  void Play(TapeStep& step) {
    if (!step.places.empty()) BeginLife(step.places);
    step_ = step.step;
    if (step.step_ms > 0) {
      if (step_ms_.size() <= static_cast<size_t>(step_)) step_ms_.resize(static_cast<size_t>(step_) + 1);
      step_ms_[static_cast<size_t>(step_)] = step.step_ms;
      now_ns_ += static_cast<uint64_t>(step.step_ms * 1e6);
      result_.simulated_s += step.step_ms * 1e-3;
      result_.rank_steps += static_cast<double>(node_of_rank_.size());
      if (dump_ != nullptr) own_ms_[step_] = step.own_ms;
    }
    Deliver(step);
    if (step.ends_life) {
      for (size_t rank = 0; rank < node_of_rank_.size(); ++rank) engine_.RemoveRank(static_cast<int>(rank));
      topology_.Clear();
      for (const auto& baseline : baselines_) baseline->Restart();
    } else {
      Observe(false);
    }
  }

  void Finish() {
    {
      Meter meter(&result_.detectors[0].cpu_s);
      engine_.Finish();
    }
    step_ = static_cast<int>(step_ms_.size());
    Observe(true);
    const diagnosis::Report report = engine_.report();
    result_.state = report.state;
    result_.report = RenderText(report, "");
    for (size_t i = 0; i < trackers_.size(); ++i) result_.detectors[i].claims = trackers_[i].claims();
  }

  const std::vector<int>& node_of_rank() const { return node_of_rank_; }
  const std::vector<double>& step_ms() const { return step_ms_; }

 private:
  void BeginLife(const std::vector<TapeStep::Place>& places) {
    node_of_rank_.clear();
    for (const TapeStep::Place& place : places) {
      int rank = static_cast<int>(node_of_rank_.size());
      node_of_rank_.push_back(place.node);
      engine_.SetPlace(rank,
                       {.node = place.node, .host = absl::StrCat("node-", place.node), .local_rank = place.local_rank});
    }
  }

  // What was folded, to every detector.
  void Deliver(TapeStep& step) {
    for (const TapeStep::Group& group : step.groups) {
      topology_.SetGroup(group.rank, group.index, group.info);
      Meter meter(&result_.detectors[0].cpu_s);
      engine_.SetGroup(group.rank, group.index, group.info);
    }
    std::map<int64_t, std::vector<RankFold>> steps;
    for (const auto& [rank, fold] : step.folds) steps[fold.step].emplace_back(rank, &fold);
    for (auto& [number, folds] : steps) {
      std::sort(folds.begin(), folds.end());
      for (size_t i = 0; i < baselines_.size(); ++i) {
        Meter meter(&result_.detectors[i + 1].cpu_s);
        baselines_[i]->Step(number, folds, topology_);
      }
      if (dump_ != nullptr) Dump(folds);
    }
    Meter meter(&result_.detectors[0].cpu_s);
    for (auto& [rank, fold] : step.folds) engine_.Add(rank, std::move(fold), now_ns_);
    engine_.Advance(now_ns_);
  }

  void Observe(bool last) {
    diagnosis::Report report = engine_.report();
    trackers_[0].Observe(step_, report.verdicts, node_of_rank_);
    for (size_t i = 0; i < baselines_.size(); ++i) {
      trackers_[i + 1].Observe(step_, baselines_[i]->verdicts(), node_of_rank_);
    }
    if (dump_ == nullptr) return;
    for (const diagnosis::Verdict& verdict : report.verdicts) {
      std::fprintf(dump_, "# step %d %s %s %s since %lld cost %.2f ms x%.3f confidence %.3f: %s\n", step_,
                   verdict.open ? "open" : "cleared", Entity(verdict).c_str(), diagnosis::Name(verdict.cause),
                   static_cast<long long>(verdict.since_step), verdict.cost_ms_per_step, verdict.slowdown,
                   verdict.confidence, verdict.text.c_str());
      if (!last) continue;
      for (const diagnosis::Evidence& evidence : verdict.evidence) {
        std::fprintf(dump_, "#   %s %.3f against %.3f (%d peers) z %.1f steps %lld-%lld\n", evidence.feature.c_str(),
                     evidence.value, evidence.reference, evidence.peers, evidence.z,
                     static_cast<long long>(evidence.first_step), static_cast<long long>(evidence.last_step));
      }
    }
    if (!last) return;
    for (const diagnosis::Note& note : report.notes) {
      std::fprintf(dump_, "# note %s: %s\n", diagnosis::Name(note.kind), note.text.c_str());
    }
  }

  void Dump(const std::vector<RankFold>& folds) {
    if (!header_) {
      std::fprintf(
          dump_,
          "step,rank,node,stage,period_ms,true_own_ms,own_ms_per_gap,head_ms,lead_ms,tail_ms,covered_ms,"
          "blocking_covered_ms,forward_ms,dataloader_ms,dataloader_own_ms,checkpoint_ms,checkpoint_own_ms,issues,"
          "issue_p10_us,issue_p50_us,broken,ops(label:group.op>peer size count duration min gaps:ms:max bgaps:ms)\n");
      header_ = true;
    }
    auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
    for (auto [rank, fold] : folds) {
      auto own = own_ms_.find(static_cast<int>(fold->step));
      double true_own = own != own_ms_.end() && static_cast<size_t>(rank) < own->second.size()
                            ? own->second[static_cast<size_t>(rank)]
                            : -1;
      std::fprintf(
          dump_, "%lld,%d,%d,%d,%.3f,%.3f,%.4f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%u,%.1f,%.1f,%u,",
          static_cast<long long>(fold->step), rank, node_of_rank_[static_cast<size_t>(rank)], topology_.Stage(rank),
          ms(fold->period_ns()), true_own, OwnTimeNs(*fold) * 1e-6, ms(fold->head_ns), ms(fold->lead_ns),
          ms(fold->tail_ns), ms(fold->covered_ns), ms(fold->blocking_covered_ns), ms(fold->forward_ns),
          ms(fold->dataloader_ns), ms(fold->dataloader_own_ns), ms(fold->checkpoint_ns), ms(fold->checkpoint_own_ns),
          fold->issues, ms(fold->issue_p10_ns) * 1e3, ms(fold->issue_p50_ns) * 1e3, fold->broken);
      for (const OpFold& op : fold->ops) {
        std::fprintf(dump_, "%s:%u.%d>%d 2^%d x%u %.3f %.4f %u:%.3f:%.3f %u:%.3f;",
                     topology_.Group(rank, op.group).label.c_str(), op.group, static_cast<int>(op.op), op.peer,
                     op.size_log2, op.count, ms(op.duration_ns), ms(op.min_duration_ns), op.gaps, ms(op.gap_ns),
                     ms(op.max_gap_ns), op.blocking_gaps, ms(op.blocking_gap_ns));
      }
      std::fputc('\n', dump_);
    }
  }

  std::FILE* dump_;
  CaseResult& result_;
  diagnosis::Engine engine_;
  std::vector<std::unique_ptr<Baseline>> baselines_;
  Topology topology_;
  std::vector<ClaimTracker> trackers_;
  std::vector<int> node_of_rank_;
  std::vector<double> step_ms_;
  std::map<int, std::vector<double>> own_ms_;  // for the dump
  bool header_ = false;
  uint64_t now_ns_ = 1'000'000'000;
  int step_ = 0;
};

}  // namespace

std::string LayoutName(const simulate::Layout& layout) {
  std::string name;
  auto add = [&](const char* what, int size) {
    if (size > 1) absl::StrAppend(&name, name.empty() ? "" : " ", what, size);
  };
  add("tp", layout.tp);
  add("cp", layout.cp);
  add("pp", layout.pp);
  add("dp", layout.dp);
  add("ep", layout.ep);
  return name.empty() ? "1" : name;
}

CaseResult Replay(const Case& item, int index, const ReplayOptions& options) {
  double begin = Seconds(CLOCK_MONOTONIC);
  CaseResult result;
  result.suite = item.suite;
  result.index = index;
  result.seed = options.seed;
  result.honesty = item.honesty;
  result.layout = LayoutName(item.job.layout);
  result.ranks = item.job.layout.ranks();
  result.steps = item.job.steps;
  Player player(options, result);
  auto play = [&player](TapeStep& step) { player.Play(step); };
  absl::StatusOr<TapeEnd> end;
  if (options.tapes.empty()) {
    end = Record(item.job, options.dump != nullptr, play);
  } else {
    end = RecordOrRead(absl::StrCat(options.tapes, "/", item.suite, "-", index, "-", options.seed, ".tape"), item.job,
                       play);
  }
  if (!end.ok()) {
    result.error = std::string(end.status().message());
    return result;
  }
  player.Finish();
  result.labels = std::move(end->labels);
  result.simulate_s = end->simulate_s;
  result.fold_s = end->fold_s;
  for (const simulate::Label& label : result.labels) {
    // A fault may have several labels, one a life of the job, and none.
    auto fault = std::find_if(item.job.faults.begin(), item.job.faults.end(), [&](const simulate::Fault& one) {
      return one.kind == label.kind && one.severity == label.severity && one.first_step <= label.first_step;
    });
    result.shapes.push_back(fault != item.job.faults.end() ? Name(fault->shape) : "?");
  }
  result.step_ms = Quantile(player.step_ms(), 0.5);
  for (DetectorResult& detector : result.detectors) {
    detector.score = ScoreCase(detector.claims, result.labels, player.node_of_rank(), player.step_ms());
  }
  result.wall_s = Seconds(CLOCK_MONOTONIC) - begin;
  return result;
}

}  // namespace taskd::evaluation
