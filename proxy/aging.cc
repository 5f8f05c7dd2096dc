#include "proxy/aging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/unique_fd.h"
#include "proxy/folder.h"

namespace taskd::proxy {
namespace {

// Beyond these it is not our layout any more; what is there is not looked at. Mark files: those seen first are aged.
constexpr int kMaxDepth = 16;
constexpr size_t kMaxMarkFiles = size_t{1} << 17;
constexpr size_t kMaxEntries = size_t{4} << 20;
constexpr size_t kMaxNameDigits = 10;

// <task>/<rank>, as the walk found it.
struct RankFolder {
  std::string task;
  std::string rank;
  dev_t device;
  ino_t inode;
};

struct MarkFile {
  int64_t modified_ns;
  int64_t bytes;
  uint32_t folder;  // index of a RankFolder
  std::array<char, kMaxNameDigits + 1> name;
};

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Every folder is opened below the descriptor of the one that it lies in, and every file is removed from such a
// descriptor: whatever is swapped meanwhile, nothing outside is touched.
class Walk {
 public:
  Walk(const std::string& path, const std::atomic<bool>& stop) : path_(path), stop_(stop) {}

  AgingResult Run(int64_t limit_bytes) {
    absl::StatusOr<UniqueFd> root = OpenFolder(AT_FDCWD, path_, path_);
    if (!root.ok()) return {};
    Look(root->get(), 0, {}, {});
    AgingResult result;
    result.bytes = bytes_;
    if (bytes_ <= limit_bytes || stop_) return result;
    std::erase_if(files_, [&](const MarkFile& file) { return !FolderOf(file, root->get()) || InUse(file); });
    std::sort(files_.begin(), files_.end(), [](const MarkFile& a, const MarkFile& b) {
      return a.modified_ns != b.modified_ns ? a.modified_ns < b.modified_ns : a.name < b.name;
    });
    auto oldest = files_.begin();
    while (result.bytes > limit_bytes && oldest != files_.end() && !stop_) {
      std::ptrdiff_t fifth = std::max<std::ptrdiff_t>(1, (files_.end() - oldest) / 5);
      for (auto end = oldest + fifth; oldest != end; ++oldest) {
        if (!FolderOf(*oldest, root->get()) || unlinkat(folder_.get(), oldest->name.data(), 0) != 0) continue;
        result.bytes -= oldest->bytes;
        ++result.removed;
      }
    }
    result.over = result.bytes > limit_bytes;
    return result;
  }

 private:
  // `parent` and `name`: of this folder, and of the one that it lies in.
  void Look(int folder, int depth, const std::string& parent, const std::string& name) {
    uint32_t rank_folder = 0;
    const bool is_rank = depth == 2 && IsDigits(name);
    if (is_rank) {
      struct stat info;
      if (fstat(folder, &info) != 0) return;
      rank_folder = folders_.size();
      folders_.push_back({parent, name, info.st_dev, info.st_ino});
    }
    std::vector<std::string> below;
    (void)ListFolder(folder, [&](const char* entry) {
      if (stop_ || ++entries_ > kMaxEntries) return false;
      struct stat info;
      if (fstatat(folder, entry, &info, AT_SYMLINK_NOFOLLOW) != 0) return true;
      if (S_ISDIR(info.st_mode) && depth + 1 < kMaxDepth) below.emplace_back(entry);
      if (!S_ISREG(info.st_mode)) return true;
      bytes_ += info.st_size;
      const size_t length = strlen(entry);
      if (is_rank && length <= kMaxNameDigits && IsDigits({entry, length}) && files_.size() < kMaxMarkFiles) {
        MarkFile file = {info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size, rank_folder, {}};
        memcpy(file.name.data(), entry, length);
        files_.push_back(file);
      }
      return true;
    });
    for (const std::string& entry : below) {
      absl::StatusOr<UniqueFd> next = OpenFolder(folder, entry, entry);
      if (next.ok()) Look(next->get(), depth + 1, name, entry);
    }
  }

  // Opens the file's folder as folder_, if it is still the one that the file was found in.
  bool FolderOf(const MarkFile& file, int root) {
    if (folder_.valid() && open_folder_ == file.folder) return true;
    folder_.reset();
    const RankFolder& wanted = folders_[file.folder];
    absl::StatusOr<UniqueFd> task = OpenFolder(root, wanted.task, wanted.task);
    if (!task.ok()) return false;
    absl::StatusOr<UniqueFd> rank = OpenFolder(task->get(), wanted.rank, wanted.rank);
    struct stat info;
    if (!rank.ok() || fstat(rank->get(), &info) != 0) return false;
    if (info.st_dev != wanted.device || info.st_ino != wanted.inode) return false;
    folder_ = *std::move(rank);
    open_folder_ = file.folder;
    return true;
  }

  // Proxies hold a lock on the file that they append to, visible to all nodes of a shared file system. On a local one
  // the kernel also grants no lease while any other process has the file open.
  bool InUse(const MarkFile& file) {
    UniqueFd fd(openat(folder_.get(), file.name.data(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    struct stat info;
    if (!fd.valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return true;
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
    return fcntl(fd.get(), F_SETLEASE, F_WRLCK) != 0 && errno == EAGAIN;
  }

  const std::string path_;
  const std::atomic<bool>& stop_;
  int64_t bytes_ = 0;
  size_t entries_ = 0;
  std::vector<RankFolder> folders_;
  std::vector<MarkFile> files_;
  UniqueFd folder_;
  uint32_t open_folder_ = 0;
};

}  // namespace

AgingResult AgeProfilingDir(const std::string& path, int64_t limit_bytes, const std::atomic<bool>& stop) {
  if (limit_bytes <= 0) return {};
  // A slash at the end would make O_NOFOLLOW follow.
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return Walk(folder, stop).Run(limit_bytes);
}

void PeriodicAging::Tick(uint64_t now_monotonic_ns, int64_t limit_mb) {
  constexpr uint64_t kIntervalNs = 10'000'000'000;
  constexpr int64_t kMebibyte = int64_t{1024} * 1024;
  if (state_->busy.load(std::memory_order_acquire)) return;
  if (std::optional<AgingResult> aged = std::exchange(state_->result, std::nullopt)) {
    if (aged->removed > 0) spdlog::info("removed the {} oldest mark files: limit {} MB", aged->removed, limit_mb_);
    if (aged->over && !over_said_) {
      spdlog::warn("{} holds {} MB, limit {} MB, and no mark file is left to remove", path_, aged->bytes / kMebibyte,
                   limit_mb_);
    }
    over_said_ = aged->over;
  }
  if (now_monotonic_ns < next_ns_) return;
  next_ns_ = now_monotonic_ns + kIntervalNs;
  limit_mb_ = limit_mb;
  state_->busy.store(true, std::memory_order_relaxed);
  threads_.Run([state = state_, path = path_, limit_bytes = limit_mb * kMebibyte] {
    state->result = AgeProfilingDir(path, limit_bytes, state->stop);
    state->busy.store(false, std::memory_order_release);
  });
}

}  // namespace taskd::proxy
