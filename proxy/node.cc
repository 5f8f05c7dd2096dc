#include "proxy/node.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "proxy/shm_segments.h"

namespace taskd {
namespace {

// A switch of MSPTI takes some ms.
constexpr auto kAnswerPollInterval = std::chrono::milliseconds(5);
constexpr int kMaxRank = 1 << 24;
constexpr int kMaxRanks = 4096;

}  // namespace

Node::Node(Options options, ProfilingDir dir)
    : options_(std::move(options)), dir_(std::move(dir)), disk_limit_mb_(options_.disk_limit_mb) {}

Node::~Node() { (void)Stop(); }

void Node::Start() {
  AdoptOrphans();
  drain_thread_ = std::thread([this] { DrainLoop(); });
}

absl::Status Node::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_drain_.notify_all();
  WakeWaiters();
  if (drain_thread_.joinable()) drain_thread_.join();
  return left_;
}

void Node::Changed() {
  ++version_;
  ++urgent_version_;
  changed_.notify_all();
}

void Node::WakeWaiters() {
  std::lock_guard<std::mutex> lock(mutex_);
  Changed();
}

Node::Versions Node::versions() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {version_, urgent_version_};
}

void Node::WaitForChange(uint64_t urgent, int timeout_ms, bool for_folds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto changed = [&] { return urgent_version_ != urgent || (for_folds && folds_wait_); };
  // Answers are looked for here: whoever waits wants them at once, and the drain thread may hang in a file system.
  TakeAnswers();
  while (answers_awaited_ && !changed() && std::chrono::steady_clock::now() < until) {
    changed_.wait_for(lock, kAnswerPollInterval, changed);
    TakeAnswers();
  }
  changed_.wait_until(lock, until, changed);
}

NodeFolds Node::TakeFolds(std::map<int, uint64_t>& told, size_t max_steps) {
  NodeFolds taken;
  std::lock_guard<std::mutex> lock(mutex_);
  taken.dropped = folds_dropped_;
  folds_wait_ = false;
  for (auto& [number, rank] : ranks_) {
    if (rank.folds.empty()) continue;
    if (taken.steps.size() >= max_steps) {
      folds_wait_ = true;
      break;
    }
    uint64_t& version = told[number];
    if (version != rank.groups_version) taken.groups.emplace_back(number, rank.groups);
    version = rank.groups_version;
    for (; !rank.folds.empty() && taken.steps.size() < max_steps; rank.folds.pop_front()) {
      taken.steps.emplace_back(number, std::move(rank.folds.front()));
    }
    folds_wait_ |= !rank.folds.empty();
  }
  return taken;
}

void Node::GatherFolds(const std::vector<Work>& work) {
  bool news = false;
  for (const Work& item : work) {
    if (item.lane->busy()) continue;
    const std::shared_ptr<RankFold>& fold = item.lane->fold();
    std::vector<StepFold> finished = fold->TakeFinished();
    if (finished.empty()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = ranks_.find(item.rank);
    if (found == ranks_.end() || found->second.lane != item.lane) continue;
    Rank& rank = found->second;
    if (rank.groups_version != fold->marks().groups_version()) {
      rank.groups_version = fold->marks().groups_version();
      rank.groups = fold->marks().groups();
    }
    for (StepFold& step : finished) {
      if (rank.folds.size() >= kMaxFolds) {
        rank.folds.pop_front();
        ++folds_dropped_;
      }
      rank.folds.push_back(std::move(step));
    }
    folds_wait_ = news = true;
  }
  if (news) changed_.notify_all();
}

int64_t Node::disk_limit_mb() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return disk_limit_mb_;
}

void Node::AddSegment(int number, std::shared_ptr<Segment> segment) {
  auto [entry, added] = ranks_.try_emplace(number, dir_, number);
  Rank& rank = entry->second;
  if (segment->current) {
    for (auto& old : rank.segments) {
      if (!old->current) continue;
      old->current = false;
      if (!old->ended) old->drain->segment().SetGate(0);
    }
    rank.pid = segment->drain->segment().pid();
    rank.asked.reset();
    rank.failure.clear();
    rank.applied = 0;
    rank.applied_revision = 0;
    rank.info_written = false;
  }
  ApplyGate(rank, *segment);
  rank.segments.push_back(std::move(segment));
  Changed();
}

Node::Segment* Node::FindAgain(const hello::Hello& hello, const RingSegment& ring, std::shared_ptr<RankLane>& former) {
  for (auto entry = ranks_.begin(); entry != ranks_.end(); ++entry) {
    auto& [number, rank] = *entry;
    for (auto& segment : rank.segments) {
      RingSegment& known = segment->drain->segment();
      if (known.device() != ring.device() || known.inode() != ring.inode()) continue;
      if (number == hello.rank) return segment.get();
      // Its first marks came before it knew its rank and went by an environment variable. Its new drain goes on where
      // the old one's cursors are.
      spdlog::info("rank {} (pid {}) says that it is rank {}", number, known.pid(), hello.rank);
      former = rank.lane;
      rank.ended = Sum(rank.ended, segment->counters);
      std::erase(rank.segments, segment);
      if (rank.segments.empty() && rank.ended.written == SegmentDrain::Counters().written) ranks_.erase(entry);
      return nullptr;
    }
  }
  return nullptr;
}

absl::StatusOr<uint64_t> Node::Attach(const hello::Hello& hello, UniqueFd fd) {
  if (hello.rank < 0 || hello.rank > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", hello.rank, " is not 0 to ", kMaxRank));
  }
  absl::StatusOr<std::unique_ptr<RingSegment>> opened = RingSegment::Open(std::move(fd));
  if (!opened.ok()) return opened.status();
  std::unique_ptr<RingSegment> ring = *std::move(opened);

  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return absl::UnavailableError("the proxy is stopping");
  const uint64_t token = next_token_++;
  if (hello.disk_limit_mb > 0 && (disk_limit_mb_ == 0 || hello.disk_limit_mb < disk_limit_mb_)) {
    disk_limit_mb_ = hello.disk_limit_mb;
  }
  std::shared_ptr<RankLane> former;
  if (Segment* known = FindAgain(hello, *ring, former)) {
    known->token = token;
    known->connected = true;
    known->ended = false;
    ApplyGate(ranks_.at(hello.rank), *known);
    Changed();
    return token;
  }
  if (ranks_.size() >= kMaxRanks && ranks_.find(hello.rank) == ranks_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("this node has ", kMaxRanks, " ranks already"));
  }
  auto segment = std::make_shared<Segment>();
  segment->token = token;
  segment->connected = true;
  segment->former = std::move(former);
  segment->shm_name = SegmentNameOf(ring->fd());
  auto [entry, added] = ranks_.try_emplace(hello.rank, dir_, hello.rank);
  entry->second.local_rank = hello.local_rank;
  const RankLane& lane = *entry->second.lane;
  segment->drain = std::make_shared<SegmentDrain>(std::move(ring), lane.files(), lane.fold());
  AddSegment(hello.rank, std::move(segment));
  spdlog::info("rank {} attached (pid {})", hello.rank, entry->second.pid);
  return token;
}

void Node::Detach(uint64_t token) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [number, rank] : ranks_) {
    for (auto& segment : rank.segments) {
      if (segment->token != token) continue;
      segment->connected = false;
      segment->checked_ns = 0;  // look at once whether its process is gone
      wake_drain_.notify_all();
      return;
    }
  }
}

void Node::AdoptOrphans() {
  for (const std::string& name : ListSegments(options_.socket)) {
    UniqueFd fd(open(SegmentPath(name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat info;
    if (!fd.valid() || fstat(fd.get(), &info) != 0) continue;
    if (info.st_uid != geteuid() && info.st_uid != 0) continue;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      bool known = false;
      for (auto& [number, rank] : ranks_) {
        for (auto& segment : rank.segments) known |= segment->drain->segment().inode() == info.st_ino;
      }
      if (known) continue;
    }
    absl::StatusOr<std::unique_ptr<RingSegment>> ring = RingSegment::Open(std::move(fd));
    if (!ring.ok()) {
      // Its process may be about to fill it in; one that died before is worth nothing.
      constexpr int64_t kAbandonedSeconds = 60;
      if (time(nullptr) - info.st_mtime > kAbandonedSeconds) UnlinkSegment(name);
      continue;
    }
    if ((*ring)->WriterLives()) continue;  // it will say hello
    int number = (*ring)->header().rank.load(std::memory_order_relaxed);
    if (number < 0 || number > kMaxRank) {
      spdlog::warn("a process (pid {}) has ended before it had a rank; its marks belong nowhere", (*ring)->pid());
      UnlinkSegment(name);
      continue;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    auto [entry, added] = ranks_.try_emplace(number, dir_, number);
    auto segment = std::make_shared<Segment>();
    segment->token = next_token_++;
    segment->writer_seen = true;
    segment->current = added;
    segment->ended = true;
    segment->shm_name = name;
    if (added) entry->second.local_rank = (*ring)->header().local_rank.load(std::memory_order_relaxed);
    spdlog::info("rank {} (pid {}) had ended; taking over what it recorded", number, (*ring)->pid());
    const RankLane& lane = *entry->second.lane;
    segment->drain = std::make_shared<SegmentDrain>(*std::move(ring), lane.files(), lane.fold());
    AddSegment(number, std::move(segment));
  }
}

RankReport Node::ReportOf(int number, const Rank& rank) {
  RankReport report;
  report.rank = number;
  report.pid = static_cast<int>(rank.pid);
  report.applied = rank.applied;
  report.applied_revision = rank.applied_revision;
  report.reason = "its process has ended";
  SegmentDrain::Counters counters = rank.ended;
  for (const auto& segment : rank.segments) {
    counters = Sum(counters, segment->counters);
    if (!segment->current || segment->ended) continue;
    report.attached = segment->fault.empty();
    report.reason = report.attached ? rank.failure : absl::StrCat("its ring is unusable: ", segment->fault);
    if (report.attached && !rank.failure.empty()) report.failed_revision = rank.asked->revision;
  }
  report.step = counters.step;
  report.step_ms = counters.step_ms;
  report.marks = counters.written;
  report.lost = counters.lost;
  report.overhead_ns_per_mark = counters.overhead_ns_per_mark;
  return report;
}

std::optional<RankAnswer> Node::AnswerOf(int number, const Rank& rank, uint64_t revision) const {
  const RankReport report = ReportOf(number, rank);
  RankAnswer answer;
  answer.rank = number;
  answer.node = options_.node_rank;
  answer.reason = report.reason;
  if (!report.attached) {
    // A rank whose ring is unusable is there, and cannot be switched.
    const bool unusable = std::any_of(rank.segments.begin(), rank.segments.end(), [](const auto& segment) {
      return segment->current && !segment->ended && !segment->fault.empty();
    });
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

std::vector<RankReport> Node::Reports() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RankReport> reports;
  reports.reserve(ranks_.size());
  for (const auto& [number, rank] : ranks_) reports.push_back(ReportOf(number, rank));
  return reports;
}

std::vector<RankAnswer> Node::Answers(uint64_t revision) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RankAnswer> answers;
  for (const auto& [number, rank] : ranks_) {
    if (std::optional<RankAnswer> answer = AnswerOf(number, rank, revision)) answers.push_back(*std::move(answer));
  }
  return answers;
}

}  // namespace taskd
