#include "proxy/orphan_segments.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "proxy/ring_segment.h"
#include "proxy/shm_segments.h"
#include "taskd/own_user.h"

namespace taskd::proxy {
namespace {

constexpr int64_t kAbandonedSeconds = 60;

bool Knows(const NodeRanks& node, ino_t inode) {
  std::lock_guard<std::mutex> lock(node.mutex);
  return node.Knows(inode);
}

// The segment if it is ours to read, new, and its process is gone; else null.
std::unique_ptr<RingSegment> OpenOrphan(const std::string& name, ino_t inode, const NodeRanks& node) {
  if (Knows(node, inode)) return nullptr;
  absl::StatusOr<UniqueFd> fd = OpenFile(SegmentPath(name), O_RDWR);
  struct stat info;
  if (!fd.ok() || fstat(fd->get(), &info) != 0) return nullptr;
  if (!IsOwnUserOrRoot(info.st_uid) || Knows(node, info.st_ino)) return nullptr;
  absl::StatusOr<std::unique_ptr<RingSegment>> ring = RingSegment::Open(*std::move(fd));
  if (!ring.ok()) {
    // Its process may be about to fill it in; one that died before is worth nothing.
    if (time(nullptr) - info.st_mtime > kAbandonedSeconds) UnlinkSegment(name);
    return nullptr;
  }
  if ((*ring)->WriterLives()) return nullptr;  // it will send its hello
  return *std::move(ring);
}

void Adopt(const std::string& name, std::unique_ptr<RingSegment> ring, NodeRanks& node) {
  const int number = ring->header().rank.load(std::memory_order_relaxed);
  if (number < 0 || number > kMaxRank) {
    spdlog::warn("a process (pid {}) has ended before it had a rank; its marks belong nowhere", ring->pid());
    UnlinkSegment(name);
    return;
  }
  std::lock_guard<std::mutex> lock(node.mutex);
  const bool is_new = !node.ranks.contains(number);
  NodeRank& rank = node.At(number);
  if (is_new) rank.local_rank = ring->header().local_rank.load(std::memory_order_relaxed);
  auto segment = std::make_shared<NodeSegment>();
  segment->token = node.NewToken();
  segment->writer_seen = true;
  segment->current = is_new;
  segment->ended = true;
  segment->shm_name = name;
  spdlog::info("rank {} (pid {}) had ended; taking over what it recorded", number, ring->pid());
  node.Add(number, std::move(segment), std::move(ring));
}

}  // namespace

void AdoptOrphans(SegmentScan& scan, size_t entries, NodeRanks& node) {
  scan.Look(entries, [&](const std::string& name, const struct stat& info) {
    if (std::unique_ptr<RingSegment> ring = OpenOrphan(name, info.st_ino, node)) Adopt(name, std::move(ring), node);
  });
}

}  // namespace taskd::proxy
