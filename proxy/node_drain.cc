#include "proxy/node_drain.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "nlohmann/json.hpp"
#include "proxy/orphan_segments.h"
#include "proxy/tick_clock.h"

namespace taskd::proxy {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr auto kStopPollInterval = std::chrono::milliseconds(5);
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kHangsNs = 2 * kSecondNs;  // a write that takes longer is worth a line in the log
// Of a rank that made no mark for so long its process is looked at.
constexpr uint64_t kQuietNs = 5 * kSecondNs;
// A backlog of this size is worth asking the allocator for its memory.
constexpr size_t kTrimBytes = size_t{32} << 20;

// Whether it is known which of the marks before the first proxy are wanted.
bool Decided(SegmentDrain& drain) {
  const uint32_t keep = drain.segment().header().undecided_keep.load(std::memory_order_relaxed);
  return (keep & ring::kGateUndecided) != 0;
}

}  // namespace

std::vector<NodeDrain::Work> NodeDrain::ListWork(uint64_t now_ns) {
  std::vector<Work> work;
  std::lock_guard<std::mutex> lock(node_.mutex);
  work.reserve(node_.ranks.size());
  const bool infos = node_.wanted && node_.wanted->kinds != 0;
  for (auto& [number, rank] : node_.ranks) {
    Work& item = work.emplace_back(Work{number, rank.lane, rank.segments, std::nullopt, rank.saved});
    if (!infos || rank.info_written || rank.segments.empty() || now_ns < rank.retry_info_ns) continue;
    nlohmann::ordered_json info = {
        {"node", options_.node_rank}, {"host", options_.host}, {"local_rank", rank.local_rank}};
    item.info = info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return work;
}

void NodeDrain::LookForProcess(int rank, NodeSegment& segment, uint64_t now_ns, bool stopping) {
  {
    std::lock_guard<std::mutex> lock(node_.mutex);
    if (segment.ended) return;
    // Who ended just before the proxy is to end: nobody looks again.
    if (!stopping && now_ns - segment.checked_ns <= kSecondNs) return;
  }
  RingSegment& ring = segment.drain->segment();
  const bool lives = ring.WriterLives();
  std::lock_guard<std::mutex> lock(node_.mutex);
  segment.writer_seen |= lives;
  segment.checked_ns = now_ns;
  // A segment that never had the lock is no libtaskd.so's; then only its connection shows that it lives.
  segment.ended = !lives && (segment.writer_seen || !segment.connected);
  if (!segment.ended) return;
  spdlog::info("rank {} (pid {}) has ended", rank, ring.pid());
  node_.Changed();
}

void NodeDrain::LookForStop(int number, NodeSegment& segment, uint64_t now_ns) {
  if (!segment.stop_meter.IsDue(now_ns)) return;
  {
    std::lock_guard<std::mutex> lock(node_.mutex);
    if (!segment.live()) return;
  }
  const auto pid = static_cast<pid_t>(segment.drain->segment().pid());
  std::optional<ProcessLook> look = ReadProcess(pid);
  if (!look) return;
  if (!look->stopped && segment.stop_meter.IsIdle(*look)) look->stopped = IsFrozen(ReadCgroups(pid));
  const uint64_t stopped_ns = segment.stop_meter.Look(*look, now_ns);
  if (stopped_ns == 0) return;
  std::lock_guard<std::mutex> lock(node_.mutex);
  const auto rank = node_.ranks.find(number);
  if (rank == node_.ranks.end()) return;
  rank->second.stopped_ns += stopped_ns;
  // When it goes on the manager is to hear at once: it takes the time that it hears at for the end.
  if (look->stopped) {
    node_.Counted();
  } else {
    node_.Changed();
  }
}

void NodeDrain::LookForWaits(NodeSegment& segment, uint64_t now_ns) {
  const uint32_t pid = [&] {
    std::lock_guard<std::mutex> lock(node_.mutex);
    return segment.live() ? segment.pid : 0;
  }();
  if (pid != 0) segment.cpu_wait.Look(static_cast<pid_t>(pid), now_ns);
}

void NodeDrain::FillWaits(const Work& work, std::vector<StepFold>& folds) {
  for (const auto& segment : work.segments) {
    const RingSegment& ring = segment->drain->segment();
    const uint64_t realtime_offset = ring.start_realtime_ns() - ring.start().monotonic_ns;
    const auto is_of_it = [&](const StepFold& fold) { return fold.process_id == ring.pid() && fold.period_ns() > 0; };
    // A step that a device works through does not wait each time that its process does: of it, a mean is enough.
    const auto newest = std::find_if(folds.rbegin(), folds.rend(), is_of_it);
    if (newest != folds.rend() && newest->issues == 0 && newest->device_busy_ns == 0) {
      const uint64_t now_ns = ReadMonotonicNs();
      if (segment->cpu_wait.IsDueFor(newest->end_ns - realtime_offset, now_ns)) LookForWaits(*segment, now_ns);
    }
    // Of the newest nobody knows before the next look.
    for (StepFold& fold : folds) {
      if (!is_of_it(fold)) continue;
      const std::optional<uint64_t> waited_ns =
          segment->cpu_wait.waits().Between(fold.previous_end_ns - realtime_offset, fold.end_ns - realtime_offset);
      if (waited_ns) fold.cpu_wait_ns = std::clamp<uint64_t>(*waited_ns, 1, fold.period_ns());
    }
  }
}

void NodeDrain::LookAt(int rank, NodeSegment& segment, uint64_t now_ns, bool stopping) {
  LookForProcess(rank, segment, now_ns, stopping);
  LookForStop(rank, segment, now_ns);
  if (segment.cpu_wait.IsDue(now_ns)) LookForWaits(segment, now_ns);
  const std::string fault = segment.drain->fault();
  if (fault.empty()) return;
  std::lock_guard<std::mutex> lock(node_.mutex);
  if (!segment.fault.empty()) return;
  segment.fault = fault;
  RingSegment& ring = segment.drain->segment();
  spdlog::error("rank {} (pid {}) is not recorded any more: {}", rank, ring.pid(), segment.fault);
  ring.SetGate(0);
  node_.Changed();
}

void NodeDrain::TakeCounters(NodeSegment& segment, bool idle, bool stuck, uint64_t now_ns) {
  SegmentDrain& drain = *segment.drain;
  SegmentDrain::Counters counters = idle ? drain.counters() : SegmentDrain::Counters();
  const uint64_t lost = drain.lost();
  const uint64_t recorded = drain.recorded();
  const std::optional<SegmentDrain::Progress> progress = stuck ? std::optional(drain.Peek()) : std::nullopt;
  if (!stuck) drain.StopPeeking();
  std::lock_guard<std::mutex> lock(node_.mutex);
  if (!idle) counters = segment.counters;
  counters.lost = lost;
  counters.recorded = recorded;
  if (progress) {
    // A step that has begun shows that the one before it has ended.
    counters.step = std::max(counters.step, progress->begun_step - 1);
    counters.left_loop = progress->left_loop;
  }
  if (counters.written != segment.counters.written || counters.lost != segment.counters.lost ||
      counters.step != segment.counters.step || counters.recorded != segment.counters.recorded) {
    node_.Counted();
  }
  if (counters.recorded != segment.counters.recorded) segment.marked_ns = now_ns;
  segment.counters = counters;
}

void NodeDrain::LookForWork(int number, NodeSegment& segment, const RankLane& lane, uint64_t now_ns) {
  const bool quiet = now_ns - segment.marked_ns >= kQuietNs;
  if (quiet && !segment.work_meter.IsDue(now_ns)) return;
  const uint32_t pid = [&] {
    std::lock_guard<std::mutex> lock(node_.mutex);
    return segment.live() ? segment.pid : 0;
  }();
  if (pid == 0) return;
  WorkMeter::Busy busy;
  OpenPhase open;
  if (quiet) {
    busy = segment.work_meter.Look(ReadWork(static_cast<pid_t>(pid)), now_ns);
    if (!lane.busy()) open = lane.fold()->marks().open();
  } else {
    segment.work_meter.Forget();
  }
  std::lock_guard<std::mutex> lock(node_.mutex);
  const auto rank = node_.ranks.find(number);
  if (rank == node_.ranks.end()) return;
  if (busy.cpu_ns == 0 && busy.io_ns == 0 && open == rank->second.open) return;
  rank->second.cpu_busy_ns += busy.cpu_ns;
  rank->second.io_busy_ns += busy.io_ns;
  rank->second.open = std::move(open);
  node_.Counted();
}

void NodeDrain::TakeFlushed(int rank, const absl::Status& flushed, uint64_t now_ns) {
  if (!flushed.ok()) {
    // A full disk affects every rank and is reported once; a refused folder besides is another problem.
    const bool logged = std::any_of(file_trouble_.begin(), file_trouble_.end(),
                                    [&](const auto& entry) { return entry.second.code == flushed.code(); });
    if (!logged) {
      spdlog::error("mark files cannot be written, marks wait in the ranks' rings and in memory: rank {}: {}", rank,
                    flushed.message());
    }
    file_trouble_[rank] = {now_ns + kSecondNs, flushed.code(), std::string(flushed.message())};
  } else if (file_trouble_.erase(rank) != 0 && file_trouble_.empty()) {
    spdlog::info("mark files can be written again");
  }
}

void NodeDrain::TakeResult(const Work& work, uint64_t now_ns) {
  std::optional<RankLane::Result> result = work.lane->TakeResult();
  if (!result) return;
  TakeFlushed(work.rank, result->flushed, now_ns);
  if (!result->info) return;
  std::lock_guard<std::mutex> lock(node_.mutex);
  auto rank = node_.ranks.find(work.rank);
  if (rank == node_.ranks.end() || rank->second.lane != work.lane) return;
  rank->second.info_written = result->info->ok();
  if (result->info->ok()) return;
  rank->second.retry_info_ns = now_ns + kSecondNs;
  if (!rank->second.info_trouble_said) spdlog::warn("rank {}: {}", work.rank, result->info->message());
  rank->second.info_trouble_said = true;
}

void NodeDrain::GatherFolds(const std::vector<Work>& work) {
  bool news = false;
  for (const Work& item : work) {
    if (item.lane->busy()) continue;
    std::vector<StepFold> finished = item.lane->fold()->TakeFinished();
    if (!finished.empty()) FillWaits(item, finished);
    const SavedInStep saved = item.lane->fold()->marks().saved();
    if (finished.empty() && saved == item.saved) continue;
    std::lock_guard<std::mutex> lock(node_.mutex);
    auto found = node_.ranks.find(item.rank);
    if (found == node_.ranks.end() || found->second.lane != item.lane) continue;
    news |= !finished.empty();
    if (!finished.empty()) node_.AddFolds(found->second, std::move(finished));
    if (std::exchange(found->second.saved, saved) != saved) saved.step < 0 ? node_.Counted() : node_.Changed();
  }
  if (news) node_.changed.notify_all();
}

void NodeDrain::ReadAhead(const Work& work) {
  size_t used = 0;
  for (const auto& segment : work.segments) used += segment->drain->backlog_bytes();
  for (const auto& segment : work.segments) {
    if (segment->former != nullptr || !Decided(*segment->drain)) continue;
    const size_t room = std::min(options_.rank_backlog_bytes - std::min(options_.rank_backlog_bytes, used),
                                 options_.node_backlog_bytes - std::min(options_.node_backlog_bytes, backlog_bytes_));
    const size_t before = segment->drain->backlog_bytes();
    segment->drain->ReadAhead(room);
    const size_t after = segment->drain->backlog_bytes();
    const size_t added = after - std::min(after, before);  // meanwhile some may have been written
    used += added;
    backlog_bytes_ += added;
  }
  most_backlog_bytes_ = std::max(most_backlog_bytes_, backlog_bytes_);
}

void NodeDrain::DrainIdle(int rank, const std::shared_ptr<NodeSegment>& segment, uint64_t now_ns, bool stopping,
                          bool waits, RankLane::Work& due, Segments& gone) {
  bool ended = false;
  bool current = false;
  {
    std::lock_guard<std::mutex> lock(node_.mutex);
    ended = segment->ended;
    current = segment->current;
  }
  const bool all = stopping || ended || !current;
  const bool flush = Decided(*segment->drain) && segment->drain->Due(now_ns, all);
  if (flush && !waits) due.parts.push_back({segment->drain, all, ended});
  if (!flush && ended && segment->drain->drained()) gone.emplace_back(rank, segment);
}

void NodeDrain::Drain(Work& work, uint64_t now_ns, bool stopping, Segments& gone) {
  const bool idle = !work.lane->busy();
  if (idle) TakeResult(work, now_ns);
  const auto trouble = file_trouble_.find(work.rank);
  const bool waits = trouble != file_trouble_.end() && now_ns < trouble->second.retry_ns;
  const bool stuck = trouble != file_trouble_.end() || (!idle && now_ns - work.lane->busy_since_ns() > kHangsNs);
  RankLane::Work due;
  due.now_ns = now_ns;
  for (const auto& segment : work.segments) {
    if (segment->former != nullptr) {
      if (segment->former->busy()) continue;
      segment->former = nullptr;
    }
    LookAt(work.rank, *segment, now_ns, stopping);
    TakeCounters(*segment, idle, stuck, now_ns);
    LookForWork(work.rank, *segment, *work.lane, now_ns);
    if (idle) DrainIdle(work.rank, segment, now_ns, stopping, waits, due, gone);
  }
  if (!idle || waits) return ReadAhead(work);
  if (stopping && !asked_to_stop_.insert(work.rank).second) return;  // one more try, now or never
  due.info = std::move(work.info);
  if (!due.parts.empty() || due.info) work.lane->Start(file_threads_, std::move(due));
}

void NodeDrain::Forget(const Segments& gone) {
  if (gone.empty()) return;
  std::lock_guard<std::mutex> lock(node_.mutex);
  for (const auto& [number, segment] : gone) {
    if (!segment->ended) continue;  // its process has come back meanwhile
    UnlinkSegment(segment->shm_name);
    file_trouble_.erase(number);
    auto rank = node_.ranks.find(number);
    if (rank == node_.ranks.end() || std::erase(rank->second.segments, segment) == 0) continue;
    rank->second.ended = Sum(rank->second.ended, segment->counters);
  }
  node_.Changed();
}

void NodeDrain::WatchStorage(const std::vector<Work>& work, uint64_t now_ns) {
  const Work* hangs = nullptr;
  backlog_bytes_ = 0;
  for (const Work& item : work) {
    if (item.lane->busy() && now_ns - item.lane->busy_since_ns() > kHangsNs) hangs = &item;
    for (const auto& segment : item.segments) backlog_bytes_ += segment->drain->backlog_bytes();
  }
  shown_backlog_bytes_ = backlog_bytes_;
  if (hangs != nullptr && !storage_hangs_) {
    spdlog::error("storage does not answer, marks wait in the ranks' rings and in memory: rank {}: {}", hangs->rank,
                  hangs->lane->files()->path());
  } else if (hangs == nullptr && storage_hangs_) {
    spdlog::info("storage answers again");
  }
  storage_hangs_ = hangs != nullptr;
  if (backlog_bytes_ > 0 || most_backlog_bytes_ == 0) return;
  if (most_backlog_bytes_ >= kTrimBytes) malloc_trim(0);
  most_backlog_bytes_ = 0;
}

void NodeDrain::TellTrouble() {
  std::lock_guard<std::mutex> lock(node_.mutex);
  const bool trouble = storage_hangs_ || !file_trouble_.empty();
  if (trouble != node_.file_trouble.empty()) return;  // the first rank's stands for all
  node_.file_trouble = !trouble ? "" : storage_hangs_ ? "storage does not answer" : file_trouble_.begin()->second.text;
  node_.Changed();
}

absl::Status NodeDrain::Wait() {
  if (thread_.joinable()) thread_.join();
  return left_;
}

absl::Status NodeDrain::LeftBehind(const std::vector<Work>& work) {
  size_t ranks = 0;
  size_t records = 0;
  for (const Work& item : work) {
    if (!item.lane->busy()) continue;
    ++ranks;
    for (const auto& segment : item.segments) records += segment->drain->backlog_records();
  }
  if (ranks == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "storage does not answer: ", records, " records of ", ranks,
      " ranks were taken out of their rings and are not in the files; the next proxy writes those that their rings "
      "still hold and counts the others as lost"));
}

bool NodeDrain::AllWritten(const std::vector<Work>& work) const {
  return std::all_of(work.begin(), work.end(),
                     [&](const Work& item) { return asked_to_stop_.contains(item.rank) && !item.lane->busy(); });
}

void NodeDrain::Upkeep(uint64_t now_ns, bool stop_begins) {
  if (stop_begins) {
    for (auto& [number, trouble] : file_trouble_) trouble.retry_ns = 0;
  }
  if (stop_begins) {
    orphans_.BeginAnew();
    AdoptOrphans(orphans_, SegmentScan::kEntriesAtOnce, node_);
  } else if (orphans_.is_under_way() || now_ns - adopted_ns_ > kSecondNs) {
    if (!orphans_.is_under_way()) adopted_ns_ = now_ns;
    AdoptOrphans(orphans_, SegmentScan::kEntriesALook, node_);
  } else if (strangers_.is_under_way() || now_ns - swept_ns_ > 60 * kSecondNs) {
    if (!strangers_.is_under_way()) swept_ns_ = now_ns;
    strangers_.Sweep(now_ns);
  }
  file_threads_.Grow();
}

void NodeDrain::DrainAll(std::vector<Work>& work, uint64_t now_ns, bool stopping) {
  Segments gone;
  for (Work& item : work) Drain(item, now_ns, stopping, gone);
  GatherFolds(work);
  Forget(gone);
}

void NodeDrain::Run() {
  adopted_ns_ = ReadMonotonicNs();
  uint64_t stop_ns = 0;  // when to leave; 0: no stop was requested
  while (true) {
    const uint64_t now_ns = ReadMonotonicNs();
    const bool stopping = [&] {
      std::lock_guard<std::mutex> lock(node_.mutex);
      return node_.stopping;
    }();
    const bool stop_begins = stopping && stop_ns == 0;
    if (stop_begins) stop_ns = now_ns + uint64_t(options_.stop_patience_ms) * 1'000'000;
    Upkeep(now_ns, stop_begins);

    std::vector<Work> work = ListWork(now_ns);
    WatchStorage(work, now_ns);
    DrainAll(work, now_ns, stopping);
    TellTrouble();
    if (stopping && (AllWritten(work) || now_ns >= stop_ns)) {
      left_ = LeftBehind(work);
      DrainAll(work, now_ns, true);  // what the last work has brought
      return;
    }
    std::unique_lock<std::mutex> lock(node_.mutex);
    node_.TakeAnswers();
    if (node_.stopping == stopping) node_.wake_drain.wait_for(lock, stopping ? kStopPollInterval : kPollInterval);
  }
}

}  // namespace taskd::proxy
