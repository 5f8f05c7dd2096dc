// How good decisions are: simulated jobs, healthy ones and ones with a known fault, each with a price of a restart and hours
// that remain, played into the diagnosis and its verdicts into the policy; against a clairvoyant who knows the fault's node
// and true cost (docs/benchmarks.md, "Decisions").
//
// Results do not depend on the number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/simulate/random.h"
#include "diagnosis/engine.h"
#include "policy/policy.h"
#include "tests/diagnosis/metrics.h"
#include "tests/diagnosis/suites.h"
#include "tests/diagnosis/tape.h"

namespace {

using taskd::diagnosis::Verdict;
using taskd::evaluation::Case;
using taskd::evaluation::ClopperPearson;
using taskd::evaluation::TapeStep;
using taskd::policy::Action;
using taskd::policy::Decision;
using taskd::policy::Policy;
using taskd::policy::View;
using taskd::simulate::Mix;
using taskd::simulate::Uniform;

constexpr char kUsage[] = R"(policy_evaluation [--jobs N] [--seed S] [--threads T] [--verbose]

  --jobs     so many healthy ones, and as many with a fault (1000)
  --seed     the seed of everything (1)
  --threads  jobs at a time (as many as CPUs)
  --verbose  each order that a clairvoyant would not give, and each that is missing, a line on stderr
)";

// Verdicts open late; the default policy wants them open for 50 steps.
constexpr int kMoreSteps = 120;
constexpr int kLookEvery = 5;

struct Result {
  bool has_fault = false;
  bool clairvoyant = false;  // would order the node of the fault
  int ordered = 0;           // nodes
  int right = 0;             // of them the fault's
  double gain_rank_s = 0;    // of the right one, by the true cost, less the price
  double best_rank_s = 0;    // of the clairvoyant's
  std::map<std::string, int> refused;
  std::string name, error;
};

double LogUniform(uint64_t random, double low, double high) {
  return std::exp(Uniform(random, std::log(low), std::log(high)));
}

// One job in front of engine and policy.
class Player {
 public:
  Player(double remaining_h, double price_s, int slots) : policy_(OptionsFor(remaining_h), 1, Policy::Kept()) {
    view_.price = {price_s * slots, 1};
    view_.slots = slots;
  }

  void Play(TapeStep& step) {
    int rank = 0;
    for (const TapeStep::Place& place : step.places) {
      SetPlace(rank++, place);
    }
    now_ns_ += static_cast<uint64_t>(step.step_ms * 1e6);
    for (const TapeStep::Group& group : step.groups) engine_.SetGroup(group.rank, group.index, group.info);
    for (auto& [number, fold] : step.folds) engine_.Add(number, std::move(fold), now_ns_);
    engine_.Advance(now_ns_);
    if (step.ends_life) {
      for (size_t i = 0; i < node_of_rank_.size(); ++i) engine_.RemoveRank(static_cast<int>(i));
    } else if (step.step % kLookEvery == 0) {
      Look();
    }
  }

  void Look() {
    taskd::diagnosis::Report report = engine_.report();
    for (Verdict& verdict : report.verdicts) {
      std::set<int> nodes;
      for (int id : verdict.ids) {
        if (verdict.scope == taskd::diagnosis::Scope::kNode) nodes.insert(id);
        if (verdict.scope == taskd::diagnosis::Scope::kRank) nodes.insert(node_of_rank_[static_cast<size_t>(id)]);
      }
      for (int node : nodes) verdict.nodes.push_back({node, absl::StrCat("h", node), "", absl::StrCat("n", node)});
    }
    view_.report = &report;
    view_.unix_ns = static_cast<int64_t>(now_ns_);
    view_.attempt_s = static_cast<double>(now_ns_) / 1e9;
    policy_.Advance(view_);
    view_.report = nullptr;
  }

  const Policy& policy() const { return policy_; }
  const std::vector<int>& node_of_rank() const { return node_of_rank_; }

 private:
  static taskd::policy::Options OptionsFor(double remaining_h) {
    taskd::policy::Options options;
    options.on_slow = taskd::policy::OnSlow::kOrder;
    options.remaining_h = remaining_h;
    return options;
  }

  void SetPlace(int rank, const TapeStep::Place& place) {
    if (rank == 0) {
      node_of_rank_.clear();
      view_.nodes.clear();
    }
    node_of_rank_.push_back(place.node);
    const std::string number = absl::StrCat(place.node);
    engine_.SetPlace(rank, {.node = place.node, .host = "h" + number, .local_rank = place.local_rank});
    if (view_.nodes.empty() || view_.nodes.back().node != place.node) {
      view_.nodes.push_back({place.node, "h" + number, "n" + number, "", {rank, rank}});
    }
    view_.nodes.back().ranks[1] = rank;
  }

  taskd::diagnosis::Engine engine_{taskd::diagnosis::Engine::Options()};
  Policy policy_;
  View view_;
  std::vector<int> node_of_rank_;
  uint64_t now_ns_ = 0;
};

// The node of the fault, if it has one and the policy's causes have its cause; else -1.
int NodeOf(const taskd::simulate::Label& label, const std::vector<int>& node_of_rank) {
  if (label.ids.empty() || (label.scope != "rank" && label.scope != "node")) return -1;
  const taskd::policy::When when;
  const bool wanted = std::ranges::any_of(label.causes, [&](const std::string& name) {
    for (int cause = 0; cause < taskd::diagnosis::kCauses; ++cause) {
      if (name == Name(static_cast<taskd::diagnosis::Cause>(cause))) return when.causes[static_cast<size_t>(cause)];
    }
    return false;
  });
  if (!wanted) return -1;
  std::set<int> nodes;
  for (int id : label.ids) nodes.insert(label.scope == "node" ? id : node_of_rank[static_cast<size_t>(id)]);
  return nodes.size() == 1 ? *nodes.begin() : -1;
}

Result Run(bool has_fault, uint64_t seed, int index) {
  Case item = taskd::evaluation::MakeCase(has_fault ? "matrix" : "healthy", seed, index);
  item.job.steps += kMoreSteps;
  const uint64_t random = Mix(seed, static_cast<uint64_t>(index) * 2 + (has_fault ? 1 : 0));
  const double remaining_h = LogUniform(Mix(random, 1), 0.2, 24);
  const double price_s = LogUniform(Mix(random, 2), 30, 1800);
  const int slots = item.job.layout.ranks();
  Result result;
  result.has_fault = has_fault;
  result.name = absl::StrCat(has_fault ? "matrix:" : "healthy:", index);
  Player player(remaining_h, price_s, slots);
  double sum_ms = 0;
  int steps = 0;
  absl::StatusOr<taskd::evaluation::TapeEnd> end = taskd::evaluation::Record(item.job, false, [&](TapeStep& step) {
    sum_ms += step.step_ms;
    steps += step.step_ms > 0 ? 1 : 0;
    player.Play(step);
  });
  if (!end.ok()) {
    result.error = std::string(end.status().message());
    return result;
  }
  player.Look();

  const taskd::policy::When when;
  const double step_ms = sum_ms / std::max(steps, 1);
  std::set<int> culprits;
  for (const taskd::simulate::Label& label : end->labels) {
    const int node = NodeOf(label, player.node_of_rank());
    if (node < 0) continue;
    const double share = label.effect / (1 + label.effect);
    const double ran_s = (label.first_step + static_cast<double>(when.open_steps)) * step_ms / 1e3;
    const double gain = share * std::max(remaining_h * 3600 - ran_s, 0.0) * slots - price_s * slots;
    culprits.insert(node);
    result.gain_rank_s = gain;
    const bool lasts = label.last_step - label.first_step >= when.open_steps + kMoreSteps / 2;
    if (share * 100 >= when.cost_percent && lasts && gain > 0) {
      result.clairvoyant = true;
      result.best_rank_s = gain;
    }
  }
  for (const Action& action : player.policy().kept().actions) {
    if (action.refused_by) ++result.refused[Name(*action.refused_by)];
    if (action.decision == Decision::kNone) continue;
    ++result.ordered;
    if (culprits.count(action.node) != 0) ++result.right;
  }
  if (result.right == 0) result.gain_rank_s = 0;
  return result;
}

void Print(const std::vector<Result>& results, bool verbose) {
  int healthy = 0, healthy_orders = 0, faults = 0, wanted = 0, given = 0, elsewhere = 0, unwanted = 0;
  double best = 0, gain = 0, lost = 0;
  std::map<std::string, int> refused;
  for (const Result& result : results) {
    if (!result.error.empty()) std::fprintf(stderr, "%s: %s\n", result.name.c_str(), result.error.c_str());
    for (const auto& [why, times] : result.refused) refused[why] += times;
    const bool ordered = result.right > 0;
    if (!result.has_fault) {
      ++healthy;
      healthy_orders += result.ordered > 0 ? 1 : 0;
    } else {
      ++faults;
      wanted += result.clairvoyant ? 1 : 0;
      given += result.clairvoyant && ordered ? 1 : 0;
      unwanted += !result.clairvoyant && ordered ? 1 : 0;
      elsewhere += result.ordered > result.right ? 1 : 0;
      best += result.best_rank_s;
      if (result.clairvoyant) gain += result.gain_rank_s;
      if (!result.clairvoyant && ordered) lost += result.gain_rank_s;
    }
    const bool wrong =
        result.has_fault ? result.clairvoyant != ordered || result.ordered > result.right : result.ordered > 0;
    if (verbose && wrong) {
      std::string why;
      for (const auto& [name, times] : result.refused) absl::StrAppend(&why, " ", name, " ", times);
      std::fprintf(stderr, "%s: clairvoyant %s, ordered %d, right %d, refused:%s\n", result.name.c_str(),
                   result.clairvoyant ? "orders" : "does nothing", result.ordered, result.right, why.c_str());
    }
  }
  const auto rate = [](int hits, int trials) {
    const taskd::evaluation::Interval interval = ClopperPearson(hits, trials);
    return absl::StrCat(hits, " of ", trials,
                        trials == 0 ? ""
                                    : absl::StrCat(" (", std::round(1000.0 * hits / trials) / 10, " %, ",
                                                   std::round(1000 * interval.low) / 10, " to ",
                                                   std::round(1000 * interval.high) / 10, " %)"));
  };
  std::printf("| jobs | orders |\n|---|---|\n");
  std::printf("| healthy: any order | %s |\n", rate(healthy_orders, healthy).c_str());
  std::printf("| with a fault that a clairvoyant would order: the node was ordered | %s |\n",
              rate(given, wanted).c_str());
  std::printf("| with a fault: a node without it was ordered | %s |\n", rate(elsewhere, faults).c_str());
  std::printf("| with a fault that a clairvoyant would leave: its node was ordered | %s |\n",
              rate(unwanted, faults - wanted).c_str());
  std::printf("| gain of the orders, of the clairvoyant's | %.1f %% |\n", best > 0 ? 100 * gain / best : 0);
  std::printf("| gain of orders that a clairvoyant would not give | %.1f %% of the clairvoyant's |\n",
              best > 0 ? 100 * lost / best : 0);
  for (const auto& [why, times] : refused) std::printf("| refused: %s | %d |\n", why.c_str(), times);
}

}  // namespace

int main(int argc, char** argv) {
  int jobs = 1000;
  uint64_t seed = 1;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool verbose = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--verbose") {
      verbose = true;
    } else if ((flag == "--jobs" && absl::SimpleAtoi(value, &jobs) && jobs > 0) ||
               (flag == "--seed" && absl::SimpleAtoi(value, &seed)) ||
               (flag == "--threads" && absl::SimpleAtoi(value, &threads) && threads > 0)) {
      ++i;
    } else {
      std::fputs(kUsage, flag == "--help" || flag == "-h" ? stdout : stderr);
      return flag == "--help" || flag == "-h" ? 0 : 2;
    }
  }
  std::vector<Result> results(static_cast<size_t>(jobs) * 2);
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (size_t job = next++; job < results.size(); job = next++) {
        results[job] = Run(job % 2 == 1, seed, static_cast<int>(job / 2));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  Print(results, verbose);
  return 0;
}
