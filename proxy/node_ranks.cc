#include "proxy/node_ranks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "proxy/tick_clock.h"

namespace taskd::proxy {

std::string ProcessName(uint32_t pid) {
  return pid == 0 ? "a process of another pid namespace" : absl::StrCat("process ", pid);
}

bool NodeRanks::Knows(ino_t inode) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](const auto& entry) {
    return std::any_of(entry.second.segments.begin(), entry.second.segments.end(),
                       [&](const auto& segment) { return segment->drain->segment().inode() == inode; });
  });
}

void NodeRanks::Add(int number, std::shared_ptr<NodeSegment> segment, std::unique_ptr<RingSegment> ring) {
  NodeRank& rank = At(number);
  segment->drain = std::make_shared<SegmentDrain>(std::move(ring), rank.lane->files(), rank.lane->fold());
  if (segment->current) {
    for (auto& old : rank.segments) {
      if (!old->current) continue;
      old->current = false;
      if (!old->ended) old->drain->segment().SetGate(0);
    }
    rank.pid = segment->drain->segment().pid();
    rank.rival_pid.reset();
    rank.gate.Reset();
    rank.info_written = false;
  }
  ApplyGate(rank, *segment);
  rank.segments.push_back(std::move(segment));
  Changed();
}

NodeSegment* NodeRanks::FindAgain(int number, const RingSegment& ring, std::shared_ptr<RankLane>& former) {
  for (auto entry = ranks.begin(); entry != ranks.end(); ++entry) {
    auto& [known_as, rank] = *entry;
    for (auto& segment : rank.segments) {
      RingSegment& known = segment->drain->segment();
      if (known.device() != ring.device() || known.inode() != ring.inode()) continue;
      if (known_as == number && segment->current) return segment.get();
      // Its first marks came before it knew its rank and went by an environment variable; or another process has taken
      // the rank while this one was not connected. Its new drain goes on where the old one's cursors are.
      if (known_as != number) spdlog::info("rank {} (pid {}) says that it is rank {}", known_as, known.pid(), number);
      former = rank.lane;
      rank.ended = Sum(rank.ended, segment->counters);
      std::erase(rank.segments, segment);
      if (rank.segments.empty() && rank.ended.written == SegmentDrain::Counters().written) ranks.erase(entry);
      return nullptr;
    }
  }
  return nullptr;
}

const NodeSegment* NodeRanks::OwnerOfRank(int number, uint32_t pid) const {
  const auto rank = ranks.find(number);
  if (rank == ranks.end()) return nullptr;
  for (const auto& segment : rank->second.segments) {
    if (!segment->current || (pid != 0 && pid == segment->pid)) continue;
    if (segment->held()) return segment.get();
  }
  return nullptr;
}

const NodeSegment* NodeRanks::OwnerOfRing(const RingSegment& ring, uint32_t pid) const {
  for (const auto& [_, rank] : ranks) {
    for (const auto& segment : rank.segments) {
      const RingSegment& known = segment->drain->segment();
      if (known.device() != ring.device() || known.inode() != ring.inode()) continue;
      const bool other = pid != 0 && segment->pid != 0 && pid != segment->pid;
      return other && segment->held() ? segment.get() : nullptr;
    }
  }
  return nullptr;
}

void NodeRanks::SetWanted(const WantedKinds& state) {
  wanted = state;
  for (auto& [number, rank] : ranks) {
    for (auto& segment : rank.segments) ApplyGate(rank, *segment);
  }
  Changed();
}

void NodeRanks::ApplyGate(NodeRank& rank, NodeSegment& segment) {
  if (!wanted || !segment.fault.empty()) return;
  RingSegment& ring = segment.drain->segment();
  const uint32_t gate = GateOf(wanted->kinds);
  std::atomic<uint32_t>& keep = ring.header().undecided_keep;
  // The first word of a proxy also decides on what was recorded before it.
  if ((keep.load(std::memory_order_relaxed) & ring::kGateUndecided) == 0) keep.store(gate | ring::kGateUndecided);
  if (segment.ended) return;
  ring.SetGate(segment.current ? gate : 0);
  if (!segment.current) return;
  const uint64_t now_ns = ReadMonotonicNs();
  rank.gate.Ask(*wanted, now_ns);
  rank.gate.TakeAnswer(ring.header(), now_ns);
  answers_awaited |= rank.gate.awaited();
}

void NodeRanks::TakeAnswers() {
  const uint64_t now_ns = ReadMonotonicNs();
  bool news = false;
  answers_awaited = false;
  for (auto& [number, rank] : ranks) {
    for (auto& segment : rank.segments) {
      if (!segment->live() || !segment->fault.empty()) continue;
      news |= rank.gate.TakeAnswer(segment->drain->segment().header(), now_ns);
      answers_awaited |= rank.gate.awaited();
    }
  }
  if (news) Changed();
}

SegmentDrain::Counters NodeRanks::CountersOf(const NodeRank& rank) {
  SegmentDrain::Counters counters = rank.ended;
  for (const auto& segment : rank.segments) counters = Sum(counters, segment->counters);
  return counters;
}

RankReport NodeRanks::ReportOf(int number, const NodeRank& rank) const {
  RankReport report;
  report.rank = number;
  report.pid = static_cast<int>(rank.pid);
  report.local_rank = rank.local_rank;
  report.applied = rank.gate.applied();
  report.applied_revision = rank.gate.applied_revision();
  report.reason = "its process has ended";
  for (const auto& segment : rank.segments) {
    if (!segment->live()) continue;
    report.attached = segment->fault.empty();
    report.reason = report.attached ? rank.gate.failure() : absl::StrCat("its ring is unusable: ", segment->fault);
    if (report.attached) report.failed_revision = rank.gate.failed_revision();
    if (report.attached && report.reason.empty() && rank.rival_pid) {
      report.reason = absl::StrCat(ProcessName(*rank.rival_pid), " says that it is this rank, too, and is set aside");
    }
  }
  const SegmentDrain::Counters counters = CountersOf(rank);
  report.step = counters.step;
  report.step_ms = counters.step_ms;
  report.marks = counters.written;
  report.lost = counters.lost;
  report.stopped_ms = rank.stopped_ns / 1'000'000;
  report.saved = rank.saved;
  report.recorded = counters.recorded;
  report.cpu_busy_ms = rank.cpu_busy_ns / 1'000'000;
  report.io_busy_ms = rank.io_busy_ns / 1'000'000;
  report.left_loop = counters.left_loop;
  report.open = rank.open;
  report.overhead_ns_per_mark = counters.overhead_ns_per_mark;
  return report;
}

std::optional<RankAnswer> NodeRanks::AnswerOf(int number, const NodeRank& rank, uint64_t revision) const {
  const RankReport report = ReportOf(number, rank);
  RankAnswer answer;
  answer.rank = number;
  answer.reason = report.reason;
  if (!report.attached) {
    // A rank whose ring is unusable is there, and cannot be switched.
    const bool unusable = std::any_of(rank.segments.begin(), rank.segments.end(),
                                      [](const auto& segment) { return segment->live() && !segment->fault.empty(); });
    answer.state = unusable && rank.pid != 0 ? RankAnswer::State::kFailed : RankAnswer::State::kUnreachable;
  } else if (report.failed_revision == revision && !report.reason.empty()) {
    answer.state = RankAnswer::State::kFailed;
  } else if (report.applied_revision == revision) {
    answer.state = RankAnswer::State::kApplied;
    answer.reason.clear();
  } else {
    return std::nullopt;
  }
  return answer;
}

void NodeRanks::AddFolds(NodeRank& rank, std::vector<StepFold> finished) {
  const MarkFold& marks = rank.lane->fold()->marks();
  if (rank.groups_version != marks.groups_version()) {
    rank.groups_version = marks.groups_version();
    rank.groups = marks.groups();
    rank.groups_serial = ++last_groups_serial_;
  }
  for (StepFold& step : finished) {
    const StepPhasesNs phases = PhasesOf(step);
    for (size_t i = 0; i < phases.size(); ++i) rank.phases_ns[i] += phases[i];
    rank.folds.push_back({rank.number, ++folds_made_, std::move(step)});
    DropOldestFolds(rank);
  }
  folds_wait = true;
}

void NodeRanks::DropOldestFolds(NodeRank& rank) {
  for (; rank.folds.size() > kMaxFolds; ++folds_dropped_) rank.folds.pop_front();
}

NodeFolds NodeRanks::TakeFolds(std::map<int, uint64_t>& sent, size_t max_steps) {
  NodeFolds taken;
  taken.dropped = folds_dropped_;
  folds_wait = false;
  if (sent.size() > 2 * ranks.size()) {
    std::erase_if(sent, [this](const auto& entry) { return !ranks.contains(entry.first); });
  }
  for (auto& [number, rank] : ranks) {
    if (rank.folds.empty()) continue;
    if (taken.steps.size() >= max_steps) {
      folds_wait = true;
      break;
    }
    uint64_t& serial = sent[number];
    if (serial != rank.groups_serial) taken.groups.emplace_back(number, rank.groups);
    serial = rank.groups_serial;
    for (; !rank.folds.empty() && taken.steps.size() < max_steps; rank.folds.pop_front()) {
      taken.steps.push_back(std::move(rank.folds.front()));
    }
    folds_wait |= !rank.folds.empty();
  }
  return taken;
}

void NodeRanks::ReturnFolds(NodeFolds folds) {
  for (auto step = folds.steps.rbegin(); step != folds.steps.rend(); ++step) {
    const auto rank = ranks.find(step->rank);
    if (rank == ranks.end()) {
      ++folds_dropped_;
      continue;
    }
    rank->second.folds.push_front(std::move(*step));
    DropOldestFolds(rank->second);
  }
  folds_wait = true;
}

void NodeRanks::Changed() {
  ++versions.all;
  ++versions.urgent;
  changed.notify_all();
}

}  // namespace taskd::proxy
