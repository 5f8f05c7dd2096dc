#include "proxy/node.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "proxy/orphan_segments.h"
#include "proxy/ring_segment.h"
#include "proxy/shm_segments.h"

namespace taskd::proxy {
namespace {

// A switch of MSPTI takes some ms.
constexpr auto kAnswerPollInterval = std::chrono::milliseconds(5);
constexpr int kMaxRanks = 4096;
// Marks of a training process that nobody has taken yet; helpers (of loaders, of saving) make few.
constexpr uint64_t kTrainingBytes = 2048;
constexpr int kMaxGenerations = 16;

// 0: it is gone, or cannot be seen.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  int parent = 0;
  return name_end != std::string::npos && std::sscanf(text.c_str() + name_end + 1, " %*c %d", &parent) == 1 ? parent
                                                                                                            : 0;
}

// A wrapper that has marked something itself, and has come to no step, is not the rank: the process that it has started is,
// once that has made marks enough.
bool TrainsInPlaceOf(const NodeSegment& owner, uint32_t pid, RingSegment& ring) {
  if (owner.pid == 0 || pid == 0 || owner.counters.step >= 0 || ring.Pending() < kTrainingBytes) return false;
  pid_t ancestor = static_cast<pid_t>(pid);
  for (int i = 0; i < kMaxGenerations && ancestor > 1; ++i) {
    ancestor = ParentOf(ancestor);
    if (ancestor == static_cast<pid_t>(owner.pid)) return true;
  }
  return false;
}

}  // namespace

Node::Node(Options options, ProfilingDir dir)
    : options_(std::move(options)), task_folder_(dir.task_folder()), node_(std::move(dir)), drain_(options_, &node_) {}

Node::~Node() { (void)Stop(); }

void Node::Start() {
  SegmentScan scan(SegmentPrefixes(options_.socket));
  AdoptOrphans(scan, SegmentScan::kEntriesAtOnce, node_);
  drain_.Start();
}

absl::Status Node::Stop() {
  {
    std::lock_guard<std::mutex> lock(node_.mutex);
    node_.stopping = true;
  }
  node_.wake_drain.notify_all();
  WakeWaiters();
  return drain_.Wait();
}

void Node::WakeWaiters() {
  std::lock_guard<std::mutex> lock(node_.mutex);
  node_.Changed();
}

Node::Versions Node::versions() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  return node_.versions;
}

void Node::WaitForChange(uint64_t urgent, int timeout_ms, bool for_folds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock<std::mutex> lock(node_.mutex);
  const auto changed = [&] { return node_.versions.urgent != urgent || (for_folds && node_.folds_wait); };
  // Answers are looked for here: whoever waits wants them at once, and the drain thread may hang in a file system.
  node_.TakeAnswers();
  while (node_.answers_awaited && !changed() && std::chrono::steady_clock::now() < until) {
    node_.changed.wait_for(lock, kAnswerPollInterval, changed);
    node_.TakeAnswers();
  }
  node_.changed.wait_until(lock, until, changed);
}

NodeFolds Node::TakeFolds(std::map<int, uint64_t>& sent, size_t max_steps) {
  std::lock_guard<std::mutex> lock(node_.mutex);
  return node_.TakeFolds(sent, max_steps);
}

bool Node::has_folds() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  return node_.folds_wait;
}

void Node::ReturnFolds(NodeFolds folds) {
  std::lock_guard<std::mutex> lock(node_.mutex);
  node_.ReturnFolds(std::move(folds));
}

AgingLimits Node::disk_limits() const {
  constexpr int64_t kMebibyte = int64_t{1024} * 1024;
  AgingLimits limits = {.all_bytes = options_.disk_limit_mb * kMebibyte, .task = task_folder_, .rank_bytes = {}};
  std::lock_guard<std::mutex> lock(node_.mutex);
  for (const auto& [number, rank] : node_.ranks) {
    const int64_t wish = rank.disk_limit_mb;
    if (wish > 0 && (options_.disk_limit_mb == 0 || wish < options_.disk_limit_mb)) {
      limits.rank_bytes[number] = wish * kMebibyte;
    }
  }
  return limits;
}

std::string Node::file_trouble() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  return node_.file_trouble;
}

std::optional<WantedKinds> Node::wanted() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  return node_.wanted;
}

void Node::SetWanted(const WantedKinds& wanted) {
  std::lock_guard<std::mutex> lock(node_.mutex);
  node_.SetWanted(wanted);
}

absl::StatusOr<uint64_t> Node::Attach(const hello::Hello& hello, UniqueFd fd) {
  if (hello.rank < 0 || hello.rank > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", hello.rank, " is not 0 to ", kMaxRank));
  }
  absl::StatusOr<std::unique_ptr<RingSegment>> opened = RingSegment::Open(std::move(fd));
  if (!opened.ok()) return opened.status();
  std::unique_ptr<RingSegment> ring = *std::move(opened);

  std::lock_guard<std::mutex> lock(node_.mutex);
  if (node_.stopping) return absl::UnavailableError("the proxy is stopping");
  if (const NodeSegment* owner = node_.OwnerOfRing(*ring, hello.pid)) return SetAside(hello.rank, hello.pid, *owner);
  const uint64_t token = node_.NewToken();
  std::shared_ptr<RankLane> former;
  if (NodeSegment* known = node_.FindAgain(hello.rank, *ring, former)) {
    known->token = token;
    known->connected = true;
    known->ended = false;
    known->pid = hello.pid;
    node_.At(hello.rank).disk_limit_mb = hello.disk_limit_mb;
    node_.ApplyGate(node_.At(hello.rank), *known);
    node_.Changed();
    return token;
  }
  if (const NodeSegment* owner = node_.OwnerOfRank(hello.rank, hello.pid)) {
    if (!TrainsInPlaceOf(*owner, hello.pid, *ring)) return SetAside(hello.rank, hello.pid, *owner);
    spdlog::info("rank {}: {}, which {} has started, trains in its place", hello.rank, ProcessName(hello.pid),
                 ProcessName(owner->pid));
  }
  if (node_.ranks.size() >= kMaxRanks && !node_.ranks.contains(hello.rank)) {
    return absl::ResourceExhaustedError(absl::StrCat("this node has ", kMaxRanks, " ranks already"));
  }
  auto segment = std::make_shared<NodeSegment>();
  segment->token = token;
  segment->connected = true;
  segment->pid = hello.pid;
  segment->writer_seen = ring->WriterLives();
  segment->former = std::move(former);
  segment->shm_name = SegmentNameOf(ring->fd());
  node_.At(hello.rank).local_rank = hello.local_rank;
  node_.At(hello.rank).disk_limit_mb = hello.disk_limit_mb;
  node_.Add(hello.rank, std::move(segment), std::move(ring));
  spdlog::info("rank {} attached (pid {})", hello.rank, node_.At(hello.rank).pid);
  return token;
}

absl::Status Node::SetAside(int number, uint32_t pid, const NodeSegment& owner) {
  const auto rank = node_.ranks.find(number);
  if (rank == node_.ranks.end()) {
    spdlog::warn("{} claims the marks of {} as rank {}'s: refused", ProcessName(pid), ProcessName(owner.pid), number);
  } else if (std::exchange(rank->second.rival_pid, pid) != pid) {
    spdlog::warn("{} says that it is rank {}, which is that of {}: it is set aside until that one ends",
                 ProcessName(pid), number, ProcessName(owner.pid));
    node_.Changed();
  }
  return absl::AlreadyExistsError(absl::StrCat("the rank is that of ", ProcessName(owner.pid)));
}

void Node::Detach(uint64_t token) {
  std::lock_guard<std::mutex> lock(node_.mutex);
  for (auto& [number, rank] : node_.ranks) {
    for (auto& segment : rank.segments) {
      if (segment->token != token) continue;
      segment->connected = false;
      segment->checked_ns = 0;  // look at once whether its process is gone
      node_.wake_drain.notify_all();
      return;
    }
  }
}

std::vector<RankReport> Node::Reports() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  std::vector<RankReport> reports;
  reports.reserve(node_.ranks.size());
  for (const auto& [number, rank] : node_.ranks) reports.push_back(node_.ReportOf(number, rank));
  return reports;
}

std::vector<Node::RankFigures> Node::Figures() const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  std::vector<RankFigures> figures;
  for (const auto& [number, rank] : node_.ranks) {
    const SegmentDrain::Counters counters = NodeRanks::CountersOf(rank);
    figures.push_back({.report = node_.ReportOf(number, rank),
                       .local_rank = rank.local_rank,
                       .phases_ns = rank.phases_ns,
                       .mark_bytes = counters.bytes,
                       .last_mark_ns = counters.last_mark_ns});
  }
  return figures;
}

std::vector<RankAnswer> Node::Answers(uint64_t revision) const {
  std::lock_guard<std::mutex> lock(node_.mutex);
  std::vector<RankAnswer> answers;
  for (const auto& [number, rank] : node_.ranks) {
    std::optional<RankAnswer> answer = node_.AnswerOf(number, rank, revision);
    if (!answer) continue;
    answer->node = options_.node_rank;
    answers.push_back(*std::move(answer));
  }
  return answers;
}

}  // namespace taskd::proxy
