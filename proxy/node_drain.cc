// Node: the thread that watches the rings and gives the ranks' lanes what is to be written.
#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "nlohmann/json.hpp"
#include "proxy/node.h"
#include "proxy/shm_segments.h"

namespace taskd {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr auto kStopPollInterval = std::chrono::milliseconds(5);
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kHangsNs = 2 * kSecondNs;  // a write that takes longer is worth a line in the log
// A backlog of this size is worth asking the allocator for its memory.
constexpr size_t kTrimBytes = size_t{32} << 20;

// Whether it is known which of the marks before the first proxy are wanted.
bool Decided(SegmentDrain& drain) {
  const uint32_t keep = drain.segment().header().undecided_keep.load(std::memory_order_relaxed);
  return (keep & ring::kGateUndecided) != 0;
}

}  // namespace

std::vector<Node::Work> Node::ListWork(uint64_t now_ns) {
  std::vector<Work> work;
  std::lock_guard<std::mutex> lock(mutex_);
  work.reserve(ranks_.size());
  const bool infos = wanted_ && wanted_->kinds != 0;
  for (auto& [number, rank] : ranks_) {
    Work& item = work.emplace_back(Work{number, rank.lane, rank.segments, std::nullopt});
    if (!infos || rank.info_written || rank.segments.empty() || now_ns < rank.retry_info_ns) continue;
    nlohmann::ordered_json info = {
        {"node", options_.node_rank}, {"host", options_.host}, {"local_rank", rank.local_rank}};
    item.info = info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return work;
}

void Node::LookAt(int rank, Segment& segment, uint64_t now_ns) {
  bool look = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    look = !segment.ended && now_ns - segment.checked_ns > kSecondNs;
  }
  RingSegment& ring = segment.drain->segment();
  if (look) {
    const bool lives = ring.WriterLives();
    segment.writer_seen |= lives;
    std::lock_guard<std::mutex> lock(mutex_);
    segment.checked_ns = now_ns;
    // A segment that never had the lock is no libtaskd.so's; then only its connection tells.
    segment.ended = !lives && (segment.writer_seen || !segment.connected);
    if (segment.ended) {
      spdlog::info("rank {} (pid {}) has ended", rank, ring.pid());
      Changed();
    }
  }
  const std::string fault = segment.drain->fault();
  if (fault.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!segment.fault.empty()) return;
  segment.fault = fault;
  spdlog::error("rank {} (pid {}) is not recorded any more: {}", rank, ring.pid(), segment.fault);
  ring.SetGate(0);
  Changed();
}

void Node::TakeCounters(Segment& segment, bool idle) {
  SegmentDrain::Counters counters;
  if (idle) {
    counters = segment.drain->counters();
  } else {
    counters.lost = segment.drain->lost();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!idle) {
    const uint64_t lost = counters.lost;
    counters = segment.counters;
    counters.lost = lost;
  }
  if (counters.written != segment.counters.written || counters.lost != segment.counters.lost ||
      counters.step != segment.counters.step) {
    ++version_;  // told with the next report, no reason to wake anybody
  }
  segment.counters = counters;
}

void Node::TakeResult(const Work& work, uint64_t now_ns) {
  std::optional<RankLane::Result> result = work.lane->TakeResult();
  if (!result) return;
  const auto trouble = file_trouble_.find(work.rank);
  if (!result->flushed.ok()) {
    // A full disk is every rank's trouble and is said once; a refused folder beside it is another trouble.
    const bool said = std::any_of(file_trouble_.begin(), file_trouble_.end(),
                                  [&](const auto& entry) { return entry.second.code == result->flushed.code(); });
    if (!said) {
      spdlog::error("mark files cannot be written, marks wait in the ranks' rings and in memory: rank {}: {}",
                    work.rank, result->flushed.message());
    }
    file_trouble_[work.rank] = {now_ns + kSecondNs, result->flushed.code()};
  } else if (trouble != file_trouble_.end()) {
    file_trouble_.erase(trouble);
    if (file_trouble_.empty()) spdlog::info("mark files can be written again");
  }
  if (!result->info) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto rank = ranks_.find(work.rank);
  if (rank == ranks_.end() || rank->second.lane != work.lane) return;
  rank->second.info_written = result->info->ok();
  if (result->info->ok()) return;
  rank->second.retry_info_ns = now_ns + kSecondNs;
  if (!rank->second.info_trouble_said) spdlog::warn("rank {}: {}", work.rank, result->info->message());
  rank->second.info_trouble_said = true;
}

void Node::ReadAhead(const Work& work) {
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

void Node::Drain(Work& work, uint64_t now_ns, bool stopping,
                 std::vector<std::pair<int, std::shared_ptr<Segment>>>& gone) {
  const bool idle = !work.lane->busy();
  if (idle) TakeResult(work, now_ns);
  const auto trouble = file_trouble_.find(work.rank);
  const bool waits = trouble != file_trouble_.end() && now_ns < trouble->second.retry_ns;
  RankLane::Work due;
  due.now_ns = now_ns;
  for (const auto& segment : work.segments) {
    if (segment->former != nullptr) {
      if (segment->former->busy()) continue;
      segment->former = nullptr;
    }
    LookAt(work.rank, *segment, now_ns);
    TakeCounters(*segment, idle);
    bool ended = false;
    bool current = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = segment->ended;
      current = segment->current;
    }
    if (!idle) continue;
    const bool all = stopping || ended || !current;
    const bool flush = Decided(*segment->drain) && segment->drain->Due(now_ns, all);
    if (flush && !waits) due.parts.push_back({segment->drain, all, ended});
    if (!flush && ended && segment->drain->drained()) gone.emplace_back(work.rank, segment);
  }
  if (!idle || waits) return ReadAhead(work);
  if (stopping && !asked_to_stop_.insert(work.rank).second) return;  // one more try, now or never
  due.info = std::move(work.info);
  if (!due.parts.empty() || due.info) work.lane->Start(file_threads_, std::move(due));
}

void Node::Forget(const std::vector<std::pair<int, std::shared_ptr<Segment>>>& gone) {
  if (gone.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [number, segment] : gone) {
    if (!segment->ended) continue;  // its process has come back meanwhile
    UnlinkSegment(segment->shm_name);
    file_trouble_.erase(number);
    auto rank = ranks_.find(number);
    if (rank == ranks_.end() || std::erase(rank->second.segments, segment) == 0) continue;
    rank->second.ended = Sum(rank->second.ended, segment->counters);
  }
  Changed();
}

void Node::WatchStorage(const std::vector<Work>& work, uint64_t now_ns) {
  const Work* hangs = nullptr;
  backlog_bytes_ = 0;
  for (const Work& item : work) {
    if (item.lane->busy() && now_ns - item.lane->busy_since_ns() > kHangsNs) hangs = &item;
    for (const auto& segment : item.segments) backlog_bytes_ += segment->drain->backlog_bytes();
  }
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

absl::Status Node::Leave(const std::vector<Work>& work) {
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

void Node::DrainLoop() {
  StrangerSweeper strangers(options_.socket);
  uint64_t adopted_ns = ReadMonotonicNs();
  uint64_t swept_ns = 0;
  uint64_t stop_ns = 0;  // when to leave
  while (true) {
    const uint64_t now_ns = ReadMonotonicNs();
    const bool stopping = [&] {
      std::lock_guard<std::mutex> lock(mutex_);
      return stopping_;
    }();
    const bool stop_begins = stopping && stop_ns == 0;
    if (stop_begins) {
      stop_ns = now_ns + uint64_t(options_.stop_patience_ms) * 1'000'000;
      for (auto& [number, trouble] : file_trouble_) trouble.retry_ns = 0;
    }
    if (stop_begins || now_ns - adopted_ns > kSecondNs) {
      AdoptOrphans();
      adopted_ns = now_ns;
    }
    if (now_ns - swept_ns > 60 * kSecondNs) {
      strangers.Sweep(now_ns);
      swept_ns = now_ns;
    }
    file_threads_.Grow();

    std::vector<Work> work = ListWork(now_ns);
    WatchStorage(work, now_ns);
    std::vector<std::pair<int, std::shared_ptr<Segment>>> gone;
    for (Work& item : work) Drain(item, now_ns, stopping, gone);
    GatherFolds(work);
    Forget(gone);
    if (stopping) {
      const bool done = std::all_of(work.begin(), work.end(), [&](const Work& item) {
        return asked_to_stop_.contains(item.rank) && !item.lane->busy();
      });
      if (done || now_ns >= stop_ns) {
        left_ = Leave(work);
        gone.clear();
        // What the last work has brought.
        for (Work& item : work) Drain(item, now_ns, true, gone);
        GatherFolds(work);
        Forget(gone);
        return;
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    TakeAnswers();
    if (stopping_ == stopping) wake_drain_.wait_for(lock, stopping ? kStopPollInterval : kPollInterval);
  }
}

}  // namespace taskd
