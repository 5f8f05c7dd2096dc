#include "diagnosis/coverage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/ranges_text.h"
#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"
#include "diagnosis/text.h"
#include "diagnosis/union_find.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kShownGroups = 3;

constexpr char kWhatToSet[] = "docs/marks.md says what marks which way to train";

double OutsideNs(const StepFold& fold) {
  return static_cast<double>(fold.period_ns()) - static_cast<double>(std::min(fold.covered_ns, fold.period_ns()));
}

// What of the time outside communication is marked as something.
double KnownNs(const StepFold& fold) {
  return static_cast<double>(fold.forward_own_ns + fold.dataloader_own_ns + fold.checkpoint_own_ns);
}

double UpperQuartile(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 3 / 4);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

bool Gathers(CommOp op) { return op != CommOp::kBroadcast && op != CommOp::kScatter; }
bool Spreads(CommOp op) { return op != CommOp::kReduce && op != CommOp::kGather; }

}  // namespace

Coverage::Rank& Coverage::Touch(int rank) {
  if (static_cast<size_t>(rank) >= ranks_.size()) ranks_.resize(static_cast<size_t>(rank) + 1);
  return ranks_[static_cast<size_t>(rank)];
}

void Coverage::Forget() {
  std::vector<std::optional<bool>> switches;
  for (const Rank& rank : ranks_) switches.push_back(rank.communication_on);
  const uint64_t version = version_ + 1;
  *this = Coverage();
  version_ = version;
  for (size_t r = 0; r < switches.size(); ++r) Touch(static_cast<int>(r)).communication_on = switches[r];
}

void Coverage::SetCommunicationOn(int rank, bool on) {
  std::optional<bool>& known = Touch(rank).communication_on;
  if (known == on) return;
  known = on;
  ++version_;
}

void Coverage::BeginStep() {
  ++observed_;
  ++version_;
}

void Coverage::Take(const Layout& layout, int r, const StepFold& fold) {
  Rank& rank = Touch(r);
  if (!IsPresent(rank)) sets_.until = kNever;
  const auto period = static_cast<double>(fold.period_ns());
  const double share = 1 - OutsideNs(fold) / period;
  rank.share += (share - rank.share) * (rank.last_step == kNever ? 1 : parameters.coverage_average);
  rank.pace_ns += (period - rank.pace_ns) * (rank.last_step == kNever ? 1 : parameters.coverage_average);
  rank.last_step = observed_;
  NoteUses(layout, r, fold, rank);
}

void Coverage::Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, double period_ns) {
  NotePace(folds, period_ns);
  NoteWaits(layout, folds);
}

void Coverage::Regroup(const Layout& layout) {
  ++version_;
  sets_.until = kNever;
  for (Rank& rank : ranks_) {
    std::erase_if(rank.uses, [&](const Use& use) { return layout.group(use.group).users == 0; });
  }
}

void Coverage::NoteUses(const Layout& layout, int r, const StepFold& fold, Rank& rank) {
  for (const OpFold& op : fold.ops) {
    if (IsPointToPoint(op.op)) {
      if (!IsRecent(rank.point_to_point)) sets_.until = kNever;
      rank.point_to_point = observed_;
      if (op.peer >= 0) continue;  // the layout has it
    }
    const int group = layout.GroupOf(r, op.group);
    if (group < 0) continue;
    auto use = std::find_if(rank.uses.begin(), rank.uses.end(), [&](const Use& known) { return known.group == group; });
    if (use == rank.uses.end()) {
      std::erase_if(rank.uses, [&](const Use& known) { return !IsRecent(known.gathers) && !IsRecent(known.spreads); });
      use = rank.uses.insert(rank.uses.end(), {group});
    }
    const bool met = Meets(*use);
    if (Gathers(op.op)) use->gathers = observed_;
    if (Spreads(op.op)) use->spreads = observed_;
    if (!met && Meets(*use)) sets_.until = kNever;
  }
}

void Coverage::NotePace(const std::vector<std::pair<int, StepFold>>& folds, double usual_ns) {
  for (const auto& [r, fold] : folds) {
    ranks_[static_cast<size_t>(r)].behind_steps += static_cast<double>(fold.period_ns()) / usual_ns - 1;
  }
}

void Coverage::NoteWaits(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds) {
  const bool silent =
      std::all_of(folds.begin(), folds.end(), [](const auto& entry) { return entry.second.ops.empty(); });
  if (!silent && silent_steps_ >= parameters.silent_steps) {
    // They were not recorded before.
    waits_.clear();
    moments_ = {};
  }
  silent_steps_ = silent ? silent_steps_ + 1 : 0;
  const std::vector<ClassStep> classes = SumByClass(layout, folds);
  const Waits waits = WaitsOf(classes, folds);
  if (!silent) waits_.push_back(waits);
  if (waits_.size() > static_cast<size_t>(kWindow)) waits_.pop_front();
  // A device works behind the host: what forward loses there need not hold it up.
  const bool on_host =
      std::all_of(folds.begin(), folds.end(), [](const auto& entry) { return entry.second.host_only; });
  if (on_host && silent_steps_ < parameters.silent_steps) NoteMoments(layout, classes, folds);
}

std::vector<Coverage::ClassStep> Coverage::SumByClass(const Layout& layout,
                                                      const std::vector<std::pair<int, StepFold>>& folds) {
  std::vector<ClassStep> classes(layout.classes().size());
  for (const auto& [r, fold] : folds) {
    ClassStep& peers = classes[static_cast<size_t>(layout.rank(r).peer_class)];
    const auto covered = static_cast<double>(fold.covered_ns);
    const double outside = OutsideNs(fold);
    peers.least_covered = peers.count == 0 ? covered : std::min(peers.least_covered, covered);
    peers.most_covered = std::max(peers.most_covered, covered);
    peers.longest_outside = std::max(peers.longest_outside, outside);
    ++peers.count;
    peers.known += KnownNs(fold);
    peers.outside += outside;
    peers.period += static_cast<double>(fold.period_ns());
  }
  return classes;
}

Coverage::Waits Coverage::WaitsOf(const std::vector<ClassStep>& classes,
                                  const std::vector<std::pair<int, StepFold>>& folds) {
  longest_outside_.resize(classes.size());
  std::vector<double> apart;
  std::vector<double> change;
  for (size_t c = 0; c < classes.size(); ++c) {
    const ClassStep& peers = classes[c];
    if (peers.count < 2) continue;
    const double period = peers.period / peers.count;
    apart.push_back((peers.most_covered - peers.least_covered) / period);
    if (longest_outside_[c] > 0) change.push_back(std::abs(peers.longest_outside - longest_outside_[c]) / period);
    longest_outside_[c] = peers.longest_outside;
  }
  // Stages of one rank each: what they wait for is each other.
  if (apart.empty()) {
    double least = 1;
    double most = 0;
    for (const auto& [r, fold] : folds) {
      const double share = 1 - OutsideNs(fold) / static_cast<double>(fold.period_ns());
      least = std::min(least, share);
      most = std::max(most, share);
    }
    apart.push_back(most - least);
  }
  return {LowerMedian(apart), LowerMedian(change)};
}

void Coverage::NoteMoments(const Layout& layout, const std::vector<ClassStep>& classes,
                           const std::vector<std::pair<int, StepFold>>& folds) {
  for (double* sum : {&moments_.count, &moments_.known, &moments_.outside, &moments_.both})
    *sum *= 1 - parameters.coverage_forget;
  for (const auto& [r, fold] : folds) {
    const ClassStep& peers = classes[static_cast<size_t>(layout.rank(r).peer_class)];
    if (peers.count < 2) continue;
    const double period = peers.period / peers.count;
    const double known = (KnownNs(fold) - peers.known / peers.count) / period;
    const double outside = (OutsideNs(fold) - peers.outside / peers.count) / period;
    moments_.count += 1 - 1 / peers.count;
    moments_.known += known * known;
    moments_.outside += outside * outside;
    moments_.both += known * outside;
  }
}

const std::vector<int>& Coverage::FindSets(const Layout& layout) const {
  std::vector<int>& sets = sets_.of_ranks;
  const bool known = observed_ < sets_.until && sets_.layout_version == layout.version();
  if (known && sets.size() == ranks_.size()) return sets;
  int until = std::numeric_limits<int>::max();
  UnionFind met(ranks_.size());
  std::vector<int> first_of_group(layout.groups().size(), -1);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const int r = static_cast<int>(i);
    if (!IsPresent(rank)) continue;
    until = std::min(until, rank.last_step + kPresent);
    for (const Use& use : rank.uses) {
      if (!Meets(use)) continue;
      until = std::min(until, std::min(use.gathers, use.spreads) + kWindow);
      int& first = first_of_group[static_cast<size_t>(use.group)];
      if (first < 0) first = r;
      met.Join(r, first);
    }
    if (!IsRecent(rank.point_to_point)) continue;
    until = std::min(until, rank.point_to_point + kWindow);
    for (const auto& [peer, group] : layout.rank(r).peers) {
      if (static_cast<size_t>(peer) < ranks_.size() && IsPresent(ranks_[static_cast<size_t>(peer)])) met.Join(r, peer);
    }
  }
  sets.assign(ranks_.size(), -1);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (IsPresent(ranks_[i])) sets[i] = met.Find(static_cast<int>(i));
  }
  sets_.layout_version = layout.version();
  sets_.until = until;
  return sets;
}

// Ranks that wait for each other in each step cannot get steps ahead of each other.
bool Coverage::GoesFreely() const {
  double least = std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::lowest();
  for (const Rank& rank : ranks_) {
    if (!IsPresent(rank)) continue;
    least = std::min(least, rank.behind_steps);
    most = std::max(most, rank.behind_steps);
  }
  return most - least > parameters.free_steps;
}

// What the operations that are marked show about the waits.
Coverage::Finding Coverage::FindWaits() const {
  std::vector<double> apart;
  std::vector<double> change;
  for (const Waits& step : waits_) {
    apart.push_back(step.apart);
    change.push_back(step.change);
  }
  const double usual_wait = LowerMedian(apart);
  // Two ranks may be equal in most steps, and wait in the others.
  if (UpperQuartile(apart) < parameters.least_wait) return Finding::kNoWaits;
  if (moments_.known > 0) {
    if (moments_.count < parameters.moments) return Finding::kTooEarly;
    const double shown = moments_.both / moments_.known;
    const double rest = std::max(0.0, moments_.outside - shown * moments_.both);
    const double error = std::sqrt(rest / moments_.known / moments_.count);
    if (shown - parameters.coverage_sure * error > parameters.shown) return Finding::kSeen;
    if (shown + parameters.coverage_sure * error < parameters.shown) return Finding::kAbsorbed;
  }
  return usual_wait < std::max(parameters.least_wait, parameters.least_wait_part * LowerMedian(change))
             ? Finding::kNoWaits
             : Finding::kSeen;
}

Coverage::Result Coverage::Judge(const Layout& layout) const {
  Result result;
  const std::vector<int>& sets = FindSets(layout);
  std::vector<size_t> sizes(ranks_.size());  // by the smallest rank of the set
  size_t present = 0;
  size_t marked = 0;
  size_t count = 0;  // of sets
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (sets[r] < 0) continue;
    ++present;
    count += sizes[static_cast<size_t>(sets[r])]++ == 0 ? 1 : 0;
  }
  for (size_t size : sizes) marked += size > 1 ? size : 0;
  if (present == 1) {
    result.finding = Finding::kAlone;
  } else if (observed_ < parameters.enough_steps || present == 0) {
    result.finding = Finding::kTooEarly;
  } else if (marked < present) {
    result.finding = marked == 0 && GoesFreely() ? Finding::kFree : Finding::kNoMarks;
  } else if (count > 1) {
    result.finding = Finding::kApart;
  } else {
    result.finding = FindWaits();
  }
  const bool seen = result.finding == Finding::kSeen;
  result.ranks.reserve(present);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (sets[r] < 0) continue;
    result.ranks.push_back({static_cast<int>(r), ranks_[r].share, seen});
  }
  result.note = Explain(result.finding, layout, sets);
  return result;
}

std::string Coverage::Explain(Finding finding, const Layout& layout, const std::vector<int>& sets) const {
  switch (finding) {
    case Finding::kTooEarly:
    case Finding::kAlone:
    case Finding::kSeen:
      return "";
    case Finding::kFree:
      return ExplainPace();
    case Finding::kNoMarks: {
      std::map<int, std::vector<int>> by_set;
      for (size_t r = 0; r < sets.size(); ++r) {
        if (sets[r] >= 0) by_set[sets[r]].push_back(static_cast<int>(r));
      }
      std::vector<int> unmarked;
      for (const auto& [first, ranks] : by_set) {
        if (ranks.size() == 1) unmarked.push_back(first);
      }
      return ExplainNoMarks(unmarked, layout);
    }
    case Finding::kApart: {
      std::map<int, std::vector<int>> by_set;
      for (size_t r = 0; r < sets.size(); ++r) {
        if (sets[r] >= 0) by_set[sets[r]].push_back(static_cast<int>(r));
      }
      const std::vector<int>& one = by_set.begin()->second;
      const std::vector<int>& other = std::next(by_set.begin())->second;
      return absl::StrCat("ranks ", FormatRanges(one), " and ranks ", FormatRanges(other),
                          by_set.size() > 2 ? absl::StrCat(" (and ", by_set.size() - 2, " more sets)") : "",
                          " wait for each other in nothing that is marked, only among themselves: ", kWhatToSet);
    }
    case Finding::kNoWaits:
      return absl::StrCat("the marked operations (", GroupsInUse(layout),
                          ") do not hold the time that ranks wait for each other: only their start is marked, or the "
                          "ranks wait before them in something that is not marked, as DistributedDataParallel's own "
                          "all-reduce may be: ",
                          kWhatToSet);
    case Finding::kAbsorbed:
      return absl::StrCat("what a rank loses in forward or loading is made up for outside the marked operations (",
                          GroupsInUse(layout),
                          "), so ranks wait in something that is not marked, as DistributedDataParallel's own "
                          "all-reduce may be: ",
                          kWhatToSet);
  }
  return "";
}

std::string Coverage::ExplainNoMarks(const std::vector<int>& unmarked, const Layout& layout) const {
  std::vector<int> off;
  bool known = true;
  for (int r : unmarked) {
    const std::optional<bool>& on = ranks_[static_cast<size_t>(r)].communication_on;
    known = known && on.has_value();
    if (on.has_value() && !*on) off.push_back(r);
  }
  const size_t present =
      static_cast<size_t>(std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return IsPresent(r); }));
  const std::string of_whom = unmarked.size() == present
                                  ? ""
                                  : absl::StrCat(" of rank", unmarked.size() == 1 ? " " : "s ", FormatRanges(unmarked));
  const std::string judged = "; data loaders, checkpoints and, of five peers or more, forward times are judged";
  if (!off.empty()) {
    return absl::StrCat("the communication", of_whom, " is switched off, so waits look like work (taskd switch ",
                        "communication=on)", judged);
  }
  if (!known) {
    return absl::StrCat("nothing", of_whom,
                        " in which ranks wait for each other is marked: if communication is switched off, taskd switch "
                        "communication=on, else ",
                        kWhatToSet, judged);
  }
  std::string group;
  for (const Group& candidate : layout.groups()) {
    if (candidate.members.size() >= 2 && !candidate.name.empty()) {
      group = absl::StrCat(" (of the group ", candidate.name, ")");
      break;
    }
  }
  return absl::StrCat("communication is switched on, but nothing", of_whom,
                      " in which ranks wait for each other is "
                      "marked",
                      group, ", as DistributedDataParallel's own all-reduce may be: ", kWhatToSet, judged);
}

std::string Coverage::ExplainPace() const {
  std::vector<double> paces;
  int slowest = -1;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!IsPresent(ranks_[r])) continue;
    paces.push_back(ranks_[r].pace_ns);
    if (slowest < 0 || ranks_[r].pace_ns > ranks_[static_cast<size_t>(slowest)].pace_ns) slowest = static_cast<int>(r);
  }
  const double usual = LowerMedian(paces);
  const double ratio = ranks_[static_cast<size_t>(slowest)].pace_ns / usual;
  std::string text = "the ranks do not wait for each other, each goes at its own pace: nobody can hold up the others";
  if (ratio >= parameters.pace_differs) {
    absl::StrAppendFormat(&text, "; a step of rank %d takes %.2f times as long as a usual one", slowest, ratio);
  }
  return text;
}

// Names of the groups whose operations are marked.
std::string Coverage::GroupsInUse(const Layout& layout) const {
  std::set<int> groups;
  for (const Rank& rank : ranks_) {
    if (!IsPresent(rank)) continue;
    for (const Use& use : rank.uses) {
      if (Meets(use)) groups.insert(use.group);
    }
  }
  std::set<std::string> names;
  size_t more = 0;
  for (int group : groups) {
    const std::string& name = layout.group(group).name;
    if (names.size() < kShownGroups) {
      names.insert(name);
    } else {
      more += names.count(name) > 0 ? 0 : 1;
    }
  }
  if (names.empty()) return "between pairs of ranks";
  return absl::StrCat("of ", absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace taskd::diagnosis
