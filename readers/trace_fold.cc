#include "readers/trace_fold.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/median.h"
#include "marks/mark_fold.h"
#include "marks/mark_record.h"

namespace taskd::readers {
namespace {

using Kind = TraceEvent::Kind;
using Phase = MarkRecord::Phase;

constexpr uint32_t kProcess = 1;  // a trace is of one process
constexpr uint64_t kStampErrorNs = 1000;
constexpr size_t kStepsToKnow = 4;  // steps needed to know a usual one
constexpr size_t kFewOfSteps = 16;  // one step in this many is ignored as an outlier

bool IsOp(Kind kind) { return kind == Kind::kDeviceOp || kind == Kind::kWork || kind == Kind::kCall; }
bool IsStep(Kind kind) {
  return kind == Kind::kStep || kind == Kind::kDeviceStep || kind == Kind::kUncountedStep || kind == Kind::kBoundary;
}

bool BeginsBefore(const TraceEvent& a, const TraceEvent& b) { return a.start_ns < b.start_ns; }

bool Has(const std::vector<TraceEvent>& events, Kind kind) {
  return std::any_of(events.begin(), events.end(), [kind](const TraceEvent& event) { return event.kind == kind; });
}

void Keep(std::vector<TraceEvent>& events, bool (*is_kind)(Kind), Kind kept) {
  std::erase_if(events, [&](const TraceEvent& event) { return is_kind(event.kind) && event.kind != kept; });
}

void LearnFromCall(const TraceEvent& call, TraceEvent& done) {
  if (call.start_ns < done.start_ns) done.issue_ns = done.start_ns - call.start_ns;
  if (done.group != 0 || done.bytes != 0) return;
  done.group = call.group;
  done.bytes = call.bytes;
  done.peer = call.peer;
}

// Operations know their duration; their calls know the group and the size. Both share an id; without ids they are in
// the same order.
void LearnFromCalls(std::vector<TraceEvent>& events, Kind ran) {
  absl::flat_hash_map<uint64_t, const TraceEvent*> by_id;
  for (const TraceEvent& event : events) {
    if (event.kind == Kind::kCall && event.call_id != 0) by_id.try_emplace(event.call_id, &event);
  }
  for (int op = 0; op < kCommOps; ++op) {
    std::vector<TraceEvent*> done, calls;
    bool have_ids = false;
    for (TraceEvent& event : events) {
      if (event.op != static_cast<CommOp>(op)) continue;
      if (event.kind == Kind::kCall) calls.push_back(&event);
      if (event.kind != ran) continue;
      done.push_back(&event);
      const auto call = by_id.find(event.call_id);
      if (call == by_id.end()) continue;
      have_ids = true;
      LearnFromCall(*call->second, event);
    }
    // Without ids, calls cannot be assigned if some are outside of the trace.
    if (have_ids || done.size() != calls.size()) continue;
    for (size_t i = 0; i < done.size(); ++i) LearnFromCall(*calls[i], *done[i]);
  }
}

using Span = std::pair<uint64_t, uint64_t>;

// Adds a span that begins no earlier than those before.
void AddSpan(Span span, std::vector<Span>& spans) {
  if (!spans.empty() && span.first <= spans.back().second) {
    spans.back().second = std::max(spans.back().second, span.second);
  } else {
    spans.push_back(span);
  }
}

// The parts of `spans` outside of `others`; both are ordered and without overlap.
std::vector<Span> Without(const std::vector<Span>& spans, const std::vector<Span>& others) {
  std::vector<Span> left;
  size_t next = 0;
  for (auto [begin, end] : spans) {
    while (next < others.size() && others[next].second <= begin) ++next;
    for (size_t i = next; i < others.size() && others[i].first < end; ++i) {
      if (others[i].first > begin) left.emplace_back(begin, others[i].first);
      begin = std::max(begin, others[i].second);
    }
    if (begin < end) left.emplace_back(begin, end);
  }
  return left;
}

// At most one device step in this many may look like a stub; kernels of other threads belong to no step.
constexpr size_t kFewStubs = 8;

// Whether the device's steps contain its work. A device's step reaches from the first kernel that it launched to the
// last one. ROCm writes a stub of some microseconds at its end, so the device works between such steps, not in them.
bool DeviceStepsReach(const std::vector<TraceEvent>& events, const std::vector<KernelRun>& kernels) {
  std::vector<Span> ran, busy, steps;
  for (const KernelRun& kernel : kernels) ran.emplace_back(kernel.start_ns, kernel.start_ns + kernel.length_ns);
  for (const TraceEvent& event : events) {  // in the order of their begins
    if (event.kind == Kind::kDeviceOp) ran.emplace_back(event.start_ns, event.end_ns);
    if (event.kind == Kind::kDeviceStep) AddSpan({event.start_ns, event.end_ns}, steps);
  }
  std::sort(ran.begin(), ran.end());
  for (const Span& span : ran) AddSpan(span, busy);
  size_t stubs = 0, next = 0;
  for (size_t i = 1; i < steps.size(); ++i) {
    const uint64_t since = steps[i - 1].second;
    const auto [begin, end] = steps[i];
    uint64_t before_ns = 0, within_ns = 0;
    while (next < busy.size() && busy[next].second <= since) ++next;
    for (size_t at = next; at < busy.size() && busy[at].first < end; ++at) {
      const uint64_t from = std::max(busy[at].first, since), to = std::min(busy[at].second, end);
      before_ns += std::min(to, begin) - std::min(from, begin);
      within_ns += std::max(to, begin) - std::max(from, begin);
    }
    stubs += before_ns > within_ns ? 1 : 0;
  }
  return stubs * kFewStubs <= steps.size();
}

// `events` are ordered by begin.
StepSource ChooseSteps(std::vector<TraceEvent>& events, const std::vector<KernelRun>& kernels) {
  if (Has(events, Kind::kDeviceStep) && Has(events, Kind::kDeviceOp) &&
      (!Has(events, Kind::kStep) || DeviceStepsReach(events, kernels))) {
    Keep(events, IsStep, Kind::kDeviceStep);
    return StepSource::kNumbered;
  }
  for (auto [kind, source] :
       {std::pair(Kind::kStep, StepSource::kNumbered), std::pair(Kind::kUncountedStep, StepSource::kCounted),
        std::pair(Kind::kBoundary, StepSource::kOptimizer)}) {
    if (!Has(events, kind)) continue;
    Keep(events, IsStep, kind);
    int64_t count = 0;
    uint64_t before = 0;
    for (TraceEvent& event : events) {
      if (event.kind != kind || kind == Kind::kStep) continue;
      event.step = count++;
      if (kind == Kind::kBoundary) event.start_ns = std::exchange(before, event.end_ns);
    }
    // The first optimizer's step ends a step whose begin was not recorded.
    if (kind == Kind::kBoundary)
      std::erase_if(events, [](auto& event) { return event.kind == Kind::kBoundary && event.start_ns == 0; });
    return source;
  }
  return StepSource::kNone;
}

// Keeps only the outermost of nested modules.
void DropNested(std::vector<TraceEvent>& events, Kind kind) {
  uint64_t end_ns = 0;
  std::erase_if(events, [&](const TraceEvent& event) {
    if (event.kind != kind) return false;
    const bool is_nested = event.start_ns < end_ns;
    end_ns = std::max(end_ns, event.end_ns);
    return is_nested;
  });
}

// Adds forward ranges for traces without annotations: from a step's begin, or from the end of its data loading, to its
// first gradients. `events` are ordered by begin, before and after.
void AddForwards(std::vector<uint64_t> backward_ns, std::vector<TraceEvent>& events) {
  std::sort(backward_ns.begin(), backward_ns.end());
  std::vector<TraceEvent> forwards;
  for (const TraceEvent& step : events) {
    if (!IsStep(step.kind)) continue;
    const auto first = std::lower_bound(backward_ns.begin(), backward_ns.end(), step.start_ns);
    if (first == backward_ns.end() || *first >= step.end_ns) continue;
    forwards.push_back({.kind = Kind::kForward, .start_ns = step.start_ns, .end_ns = *first});
  }
  auto next = forwards.begin();
  for (const TraceEvent& event : events) {
    if (event.kind != Kind::kDataLoader) continue;
    while (next != forwards.end() && next->end_ns <= event.start_ns) ++next;
    if (next != forwards.end() && event.end_ns < next->end_ns) next->start_ns = std::max(next->start_ns, event.end_ns);
  }
  events.insert(events.end(), forwards.begin(), forwards.end());
  std::stable_sort(events.begin(), events.end(), BeginsBefore);
}

// Stamps of older profilers are doubles: a step may seem to begin before the end of the previous one.
void SeparateSteps(std::vector<TraceEvent>& events) {
  uint64_t end_ns = 0;
  for (TraceEvent& event : events) {
    if (!IsStep(event.kind)) continue;
    const bool overlaps = event.start_ns < end_ns && event.end_ns > end_ns;  // it is not a step within that one
    if (overlaps && end_ns - event.start_ns <= kStampErrorNs) event.start_ns = end_ns;
    end_ns = std::max(end_ns, event.end_ns);
  }
}

std::string JsonInside(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&out, "\\u00", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      out += c;
    }
  }
  return out;
}

constexpr std::array<const char*, kCommOps> kOpNames = {
    "other",  "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "scatter",
    "gather", "alltoall",  "send",      "recv",          "sendrecv",  "barrier"};

std::string NameOf(const TraceEvent& event, const std::vector<std::string>& groups) {
  switch (event.kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kDataLoader:
      return "dataloader";
    case Kind::kCheckpoint:
      return "save_checkpoint";
    default:
      break;
  }
  if (!IsOp(event.kind)) return absl::StrCat("step ", event.step);
  return absl::StrCat(R"({"groupName":")", event.group < groups.size() ? groups[event.group] : "", R"(","opName":")",
                      kOpNames[static_cast<size_t>(event.op)], R"(","count":)", event.bytes,
                      R"(,"dataType":"byte","destRank":)", event.peer, R"(,"srcRank":)", event.peer, "}");
}

// A begin or an end of an event. There are millions, so each one's record is made only when its turn comes.
struct Moment {
  uint64_t time_ns;
  uint32_t event;
  bool ends;
};

// Ordered by time. At equal times, events that end come before a step's end, and events that begin come after its
// begin.
std::vector<Moment> MomentsOf(const std::vector<TraceEvent>& events) {
  std::vector<Moment> moments;
  moments.reserve(2 * events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const auto event = static_cast<uint32_t>(i);
    moments.push_back({events[i].start_ns, event, false});
    moments.push_back({std::max(events[i].end_ns, events[i].start_ns + 1), event, true});
  }
  const auto turn = [&](const Moment& moment) {
    const bool is_step = IsStep(events[moment.event].kind);
    if (moment.ends) return is_step ? 1 : 0;
    return is_step ? 2 : 3;
  };
  std::sort(moments.begin(), moments.end(), [&](const Moment& a, const Moment& b) {
    return std::tuple(a.time_ns, turn(a), a.event) < std::tuple(b.time_ns, turn(b), b.event);
  });
  return moments;
}

// Drops a last step that the profiler's end has cut: a loop that is over has begun one more step. A cut step has less
// than half of the time and of the operations of almost all other steps. Whole steps may lack operations that ended
// after them, so both conditions are needed.
void DropCutStep(std::deque<StepFold>& folds) {
  if (folds.size() < kStepsToKnow) return;
  const auto is_cut = [&folds](auto value) {
    std::vector<uint64_t> values;
    for (const StepFold& fold : folds) values.push_back(value(fold));
    const uint64_t last = values.back();
    values.pop_back();
    const auto few = values.begin() + static_cast<std::ptrdiff_t>(values.size() / kFewOfSteps);
    std::nth_element(values.begin(), few, values.end());
    return 2 * last < *few;
  };
  const auto operations = [](const StepFold& fold) {
    uint64_t count = 0;
    for (const OpFold& op : fold.ops) count += op.count;
    return count;
  };
  if (is_cut(operations) && is_cut([](const StepFold& fold) { return fold.end_ns - fold.start_ns; })) folds.pop_back();
}

// Adds the issue times of each step's device operations; both are in the order of their ends.
void AddIssues(std::vector<TraceEvent> ops, std::deque<StepFold>& folds) {
  std::erase_if(ops, [](const TraceEvent& event) { return event.kind != Kind::kDeviceOp || event.issue_ns == 0; });
  std::sort(ops.begin(), ops.end(), [](const TraceEvent& a, const TraceEvent& b) { return a.end_ns < b.end_ns; });
  auto op = ops.begin();
  std::vector<uint64_t> issues;
  for (StepFold& fold : folds) {
    issues.clear();
    for (; op != ops.end() && op->end_ns <= fold.end_ns; ++op) {
      if (op->end_ns > fold.start_ns) issues.push_back(op->issue_ns);
    }
    if (issues.empty()) continue;
    std::sort(issues.begin(), issues.end());
    fold.issues = static_cast<uint32_t>(issues.size());
    fold.issue_p10_ns = issues[issues.size() / 10];
    fold.issue_p50_ns = issues[issues.size() / 2];
  }
}

// Computes the device's work in each step: the time with any kernel, and the time of the longest kernels.
class KernelFold {
 public:
  KernelFold(TraceRank& trace, const std::vector<TraceEvent>& events, FoldedTrace& folded)
      : trace_(trace), events_(events), folded_(folded) {
    std::sort(trace_.kernels.begin(), trace_.kernels.end(),
              [](const KernelRun& a, const KernelRun& b) { return a.start_ns < b.start_ns; });
  }

  void Fold() {
    FoldBusy();
    FoldTimes();
  }

 private:
  static constexpr size_t kKept = 32;

  void FoldBusy() {
    std::vector<Span> kernels, operations;
    for (const KernelRun& kernel : trace_.kernels) AddSpan({kernel.start_ns, EndOf(kernel)}, kernels);
    for (const TraceEvent& event : events_) {  // in the order of their begins
      if (event.kind == Kind::kDeviceOp) AddSpan({event.start_ns, event.end_ns}, operations);
    }
    const std::vector<Span> busy = Without(kernels, operations);
    size_t next = 0;
    for (StepFold& fold : folded_.folds) {
      if (fold.previous_end_ns == 0) continue;
      while (next < busy.size() && busy[next].second <= fold.previous_end_ns) ++next;
      for (size_t i = next; i < busy.size() && busy[i].first < fold.end_ns; ++i) {
        fold.device_busy_ns += std::min(busy[i].second, fold.end_ns) - std::max(busy[i].first, fold.previous_end_ns);
      }
    }
  }

  void FoldTimes() {
    std::vector<double> all(trace_.kernel_names.size());
    for (const KernelRun& kernel : trace_.kernels) all[kernel.name] += kernel.length_ns;
    std::vector<uint32_t> order(all.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&all](uint32_t a, uint32_t b) { return all[a] > all[b]; });
    order.resize(std::min(order.size(), kKept));
    std::vector<int> kept(all.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) {
      kept[order[i]] = static_cast<int>(i);
      folded_.kernels.push_back({.name = std::move(trace_.kernel_names[order[i]]), .ms = {}});
    }
    auto fold = folded_.folds.begin();
    for (const KernelRun& kernel : trace_.kernels) {
      if (kept[kernel.name] < 0) continue;
      while (fold != folded_.folds.end() && fold->end_ns <= kernel.start_ns) ++fold;
      if (fold == folded_.folds.end()) break;
      if (fold->previous_end_ns == 0 || kernel.start_ns < fold->previous_end_ns) continue;
      auto& ms = folded_.kernels[static_cast<size_t>(kept[kernel.name])].ms;
      if (ms.empty() || ms.back().first != fold->step) ms.emplace_back(fold->step, 0);
      ms.back().second += static_cast<float>(kernel.length_ns) / 1e6F;
    }
  }

  static uint64_t EndOf(const KernelRun& kernel) { return kernel.start_ns + kernel.length_ns; }

  TraceRank& trace_;
  const std::vector<TraceEvent>& events_;
  FoldedTrace& folded_;
};

// The events that count, ordered by begin.
struct ChosenEvents {
  std::vector<TraceEvent> events;
  StepSource steps = StepSource::kNone;
  bool has_ops = false, on_device = false;
};

ChosenEvents ChooseEvents(TraceRank& trace) {
  ChosenEvents chosen{.events = std::move(trace.events)};
  std::stable_sort(chosen.events.begin(), chosen.events.end(), BeginsBefore);
  for (Kind kind : {Kind::kDeviceOp, Kind::kWork, Kind::kCall}) {
    if (!Has(chosen.events, kind)) continue;
    if (kind != Kind::kCall) LearnFromCalls(chosen.events, kind);
    Keep(chosen.events, IsOp, kind);
    chosen.on_device = kind == Kind::kDeviceOp;
    chosen.has_ops = true;
    break;
  }
  chosen.steps = ChooseSteps(chosen.events, trace.kernels);
  SeparateSteps(chosen.events);
  if (!chosen.on_device && !Has(chosen.events, Kind::kForward)) {
    AddForwards(std::move(trace.backward_ns), chosen.events);
  }
  DropNested(chosen.events, Kind::kForward);
  return chosen;
}

void UseEvents(const std::vector<TraceEvent>& events, const std::vector<GroupInfo>& groups, const UseTraceMark& use) {
  std::vector<std::string> group_names;
  for (const GroupInfo& group : groups) group_names.push_back(JsonInside(group.name));
  std::string name;
  for (const Moment& moment : MomentsOf(events)) {
    const TraceEvent& event = events[moment.event];
    MarkRecord record;
    record.id = moment.event + 1;
    record.process_id = kProcess;
    record.phase = moment.ends ? Phase::kEnd : Phase::kStart;
    record.time_ns = moment.time_ns;
    if (record.phase == Phase::kStart) {
      name = NameOf(event, group_names);
      record.name = name;
      record.domain = IsOp(event.kind) ? "communication" : "default";
    }
    if (!use(record)) return;
  }
}

}  // namespace

FoldedTrace FoldTrace(TraceRank&& trace) {
  FoldedTrace folded;
  ChosenEvents chosen = ChooseEvents(trace);
  folded.steps = chosen.steps;
  folded.has_ops = chosen.has_ops;
  if (!chosen.events.empty()) folded.first_ns = chosen.events.front().start_ns;

  if (trace.groups.size() == 1 && trace.groups[0].members.empty() && trace.world_size > 0) {
    trace.groups[0].members = {{.first = 0, .stride = 1, .count = trace.world_size}};
  }
  MarkFold fold([&](StepFold&& step) {
    step.host_only = !chosen.on_device;
    folded.folds.push_back(std::move(step));
  });
  fold.SetGroups(trace.groups);
  UseEvents(chosen.events, trace.groups, [&fold](const MarkRecord& record) {
    fold.Add(record);
    return true;
  });
  fold.Finish();
  DropCutStep(folded.folds);
  if (chosen.on_device && !trace.kernels.empty()) KernelFold(trace, chosen.events, folded).Fold();
  if (chosen.on_device) AddIssues(std::move(chosen.events), folded.folds);
  for (StepFold& step : folded.folds) {
    const auto busy = trace.busy_ns.find(step.step);
    if (busy != trace.busy_ns.end()) step.device_busy_ns = busy->second;
  }
  folded.groups = fold.groups();
  return folded;
}

void UseTraceMarks(TraceRank&& trace, const UseTraceMark& use) {
  UseEvents(ChooseEvents(trace).events, trace.groups, use);
}

namespace {

// The key of a moment that several ranks record: the end of a group's operation `number` of a kind, or of a step.
uint64_t KeyOf(int64_t step, const GroupInfo* group, CommOp op, uint32_t number) {
  std::string who;
  if (group != nullptr) {
    who = group->name;
    for (const MemberRun& run : group->members) absl::StrAppend(&who, ",", run.first, "+", run.count, "*", run.stride);
  }
  return absl::HashOf(step, who, group != nullptr, op, number);
}

class ClockSolver {
 public:
  explicit ClockSolver(const std::vector<const FoldedTrace*>& ranks) : ranks_(ranks), offsets_(ranks.size()) {}

  std::vector<int64_t> Solve() {
    Compare(true);
    Spread();
    Compare(false);
    Spread();
    std::vector<int64_t> result;
    for (const auto& offset : offsets_) result.push_back(offset.value_or(0));
    return result;
  }

 private:
  struct End {
    size_t rank;
    int64_t ns;
  };
  struct First {
    End end;
    size_t newest_rank;  // the newest rank that has it
  };

  // Called rank by rank. If a rank has a moment twice, as a step with a repeated number, the first one counts.
  void Note(uint64_t key, End end) {
    auto [found, is_new] = first_.try_emplace(key, First{end, end.rank});
    First& first = found->second;
    if (is_new || std::exchange(first.newest_rank, end.rank) == end.rank) return;
    differences_[{first.end.rank, end.rank}].push_back(end.ns - first.end.ns);
  }

  void Compare(bool operations) {
    first_.clear();
    differences_.clear();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (const StepFold& fold : ranks_[i]->folds) {
        if (!operations) {
          Note(KeyOf(fold.step, nullptr, CommOp::kOther, 0), {i, static_cast<int64_t>(fold.end_ns)});
          continue;
        }
        for (const OpSample& sample : fold.samples) {
          if (!EndsTogether(sample.op) || sample.group >= ranks_[i]->groups.size()) continue;
          Note(KeyOf(fold.step, &ranks_[i]->groups[sample.group], sample.op, sample.number),
               {i, static_cast<int64_t>(sample.end_ns)});
        }
      }
    }
  }

  // Spreads offsets from known ranks to ranks that share a moment with them. The first rank is the reference. A rank
  // without a connection to it keeps the offset 0.
  void Spread() {
    std::map<size_t, std::vector<std::pair<size_t, int64_t>>> edges;
    for (auto& [pair, ns] : differences_) {
      const int64_t middle = UpperMedian(ns);
      edges[pair.first].push_back({pair.second, middle});
      edges[pair.second].push_back({pair.first, -middle});
    }
    std::deque<size_t> queue;
    if (!offsets_.empty() && !offsets_[0]) offsets_[0] = 0;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      if (offsets_[i]) queue.push_back(i);
    }
    while (!queue.empty()) {
      const size_t rank = queue.front();
      queue.pop_front();
      for (const auto& [other, ns] : edges[rank]) {
        if (offsets_[other]) continue;
        offsets_[other] = *offsets_[rank] + ns;
        queue.push_back(other);
      }
    }
  }

  const std::vector<const FoldedTrace*>& ranks_;
  std::vector<std::optional<int64_t>> offsets_;
  absl::flat_hash_map<uint64_t, First> first_;
  std::map<std::pair<size_t, size_t>, std::vector<int64_t>> differences_;
};

}  // namespace

std::vector<int64_t> ClockOffsetsOf(const std::vector<const FoldedTrace*>& ranks) { return ClockSolver(ranks).Solve(); }

void ShiftClock(int64_t offset_ns, std::deque<StepFold>& folds) {
  // 0 means that there is no stamp. But a trace may begin at 0, so a step's begin is always shifted.
  const auto shift = [offset_ns](uint64_t& stamp) {
    if (stamp != 0) stamp -= static_cast<uint64_t>(offset_ns);
  };
  for (StepFold& fold : folds) {
    fold.start_ns -= static_cast<uint64_t>(offset_ns);
    shift(fold.end_ns);
    shift(fold.previous_end_ns);
    for (OpFold& op : fold.ops) {
      shift(op.first_start_ns);
      shift(op.last_end_ns);
    }
    for (OpSample& sample : fold.samples) {
      shift(sample.start_ns);
      shift(sample.end_ns);
    }
  }
}

}  // namespace taskd::readers
