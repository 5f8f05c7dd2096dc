#include "proxy/aging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
  std::string task;  // empty in a job's own folder
  std::string rank;
  dev_t device;
  ino_t inode;
};

struct MarkFile {
  int64_t modified_ns;
  int64_t bytes;
  uint32_t folder;  // index of a RankFolder
  bool gone;
  std::array<char, kMaxNameDigits + 1> name;
};

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Every folder is opened below the descriptor of the one that it lies in, and every file is removed from such a
// descriptor: whatever is swapped meanwhile, nothing outside is touched.
class Walk {
 public:
  Walk(const std::string& path, bool of_one_job, const std::atomic<bool>& stop)
      : path_(path), rank_depth_(of_one_job ? 1 : 2), stop_(stop) {}

  AgingResult Run(const AgingLimits& limits) {
    absl::StatusOr<UniqueFd> root = OpenFolder(AT_FDCWD, path_, path_);
    if (!root.ok()) return {};
    Look(root->get(), 0, {}, {});
    AgingResult result;
    AgeRanks(limits, root->get());
    result.removed_of_ranks = removed_;
    if (limits.all_bytes > 0 && bytes_ > limits.all_bytes && !stop_) {
      std::vector<MarkFile*> files;
      for (MarkFile& file : files_) files.push_back(&file);
      RemoveOldest(std::move(files), bytes_, limits.all_bytes, root->get());
      result.over = bytes_ > limits.all_bytes;
    }
    result.bytes = bytes_;
    result.removed = removed_;
    return result;
  }

 private:
  // The smallest limit first: it is about the fewest ranks.
  void AgeRanks(const AgingLimits& limits, int root) {
    std::vector<int64_t> limit_of(folders_.size());  // of the folder's rank; 0: none
    std::set<int64_t> distinct;
    for (size_t i = 0; i < folders_.size(); ++i) {
      int rank;
      if (folders_[i].task != limits.task || !absl::SimpleAtoi(folders_[i].rank, &rank)) continue;
      const auto found = limits.rank_bytes.find(rank);
      if (found == limits.rank_bytes.end() || folders_[i].rank != absl::StrCat(rank)) continue;
      limit_of[i] = found->second;
      distinct.insert(found->second);
    }
    for (int64_t limit : distinct) {
      std::vector<MarkFile*> files;
      int64_t bytes = 0;
      for (MarkFile& file : files_) {
        if (file.gone || limit_of[file.folder] == 0 || limit_of[file.folder] > limit) continue;
        files.push_back(&file);
        bytes += file.bytes;
      }
      if (bytes > limit && !stop_) RemoveOldest(std::move(files), bytes, limit, root);
    }
  }

  // Removes a fifth of the files, the oldest, as often as it takes for `bytes` to be within the limit.
  void RemoveOldest(std::vector<MarkFile*> files, int64_t bytes, int64_t limit, int root) {
    std::erase_if(files, [&](const MarkFile* file) { return file->gone || !FolderOf(*file, root) || InUse(*file); });
    std::sort(files.begin(), files.end(), [](const MarkFile* a, const MarkFile* b) {
      return a->modified_ns != b->modified_ns ? a->modified_ns < b->modified_ns : a->name < b->name;
    });
    auto oldest = files.begin();
    while (bytes > limit && oldest != files.end() && !stop_) {
      std::ptrdiff_t fifth = std::max<std::ptrdiff_t>(1, (files.end() - oldest) / 5);
      for (auto end = oldest + fifth; oldest != end; ++oldest) {
        MarkFile& file = **oldest;
        if (!FolderOf(file, root) || unlinkat(folder_.get(), file.name.data(), 0) != 0) continue;
        file.gone = true;
        bytes -= file.bytes;
        bytes_ -= file.bytes;
        ++removed_;
      }
    }
  }

  // `parent` and `name`: of this folder, and of the one that it lies in.
  void Look(int folder, int depth, const std::string& parent, const std::string& name) {
    uint32_t rank_folder = 0;
    const bool is_rank = depth == rank_depth_ && IsDigits(name);
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
        MarkFile file = {
            info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size, rank_folder, false, {}};
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
    absl::StatusOr<UniqueFd> task = OpenFolder(root, wanted.task.empty() ? "." : wanted.task, wanted.task);
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
  const int rank_depth_;
  const std::atomic<bool>& stop_;
  int64_t bytes_ = 0;
  int removed_ = 0;
  size_t entries_ = 0;
  std::vector<RankFolder> folders_;
  std::vector<MarkFile> files_;
  UniqueFd folder_;
  uint32_t open_folder_ = 0;
};

}  // namespace

AgingResult AgeProfilingDir(const std::string& path, const AgingLimits& limits, const std::atomic<bool>& stop) {
  if (limits.all_bytes <= 0 && limits.rank_bytes.empty()) return {};
  // A slash at the end would make O_NOFOLLOW follow.
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return Walk(folder, limits.task.empty(), stop).Run(limits);
}

void PeriodicAging::Tick(uint64_t now_monotonic_ns, AgingLimits limits) {
  constexpr uint64_t kIntervalNs = 10'000'000'000;
  constexpr int64_t kMebibyte = int64_t{1024} * 1024;
  if (state_->busy.load(std::memory_order_acquire)) return;
  if (std::optional<AgingResult> aged = std::exchange(state_->result, std::nullopt)) {
    if (aged->removed_of_ranks > 0) {
      spdlog::info("removed the {} oldest mark files of ranks that asked for a limit of their own",
                   aged->removed_of_ranks);
    }
    if (aged->removed > aged->removed_of_ranks) {
      spdlog::info("removed the {} oldest mark files: limit {} MB", aged->removed - aged->removed_of_ranks, limit_mb_);
    }
    if (aged->over && !over_said_) {
      spdlog::warn("{} holds {} MB, limit {} MB, and no mark file is left to remove", path_, aged->bytes / kMebibyte,
                   limit_mb_);
    }
    over_said_ = aged->over;
  }
  if (now_monotonic_ns < next_ns_) return;
  next_ns_ = now_monotonic_ns + kIntervalNs;
  limit_mb_ = limits.all_bytes / kMebibyte;
  state_->busy.store(true, std::memory_order_relaxed);
  threads_.Run([state = state_, path = path_, limits = std::move(limits)] {
    state->result = AgeProfilingDir(path, limits, state->stop);
    state->busy.store(false, std::memory_order_release);
  });
}

}  // namespace taskd::proxy
