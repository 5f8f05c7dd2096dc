#include "proxy/mark_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/foreign_owner.h"
#include "common/task_name.h"
#include "proxy/profiling_dir.h"
#include "taskd/own_user.h"

namespace taskd::proxy {
namespace {

absl::Status Refusal(const std::string& path, const char* why) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
}

// Whether files can be made in the folder, or it can be made; `path` as it is named in the message. Not faccessat2:
// older containers' system call filters answer EPERM to what they do not know.
absl::Status CheckFolder(const std::string& folder, const std::string& path) {
  struct stat info;
  if (lstat(folder.c_str(), &info) == 0) {
    if (S_ISLNK(info.st_mode)) return Refusal(path, "is a symbolic link, which is refused");
    if (!S_ISDIR(info.st_mode)) return Refusal(path, strerror(ENOTDIR));
    return access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : Refusal(path, strerror(errno));
  }
  if (errno != ENOENT) return Refusal(path, strerror(errno));
  // It is made, and so are those above it that are missing.
  std::filesystem::path parent = std::filesystem::path(folder).parent_path();
  while (stat(parent.c_str(), &info) != 0) {
    if (errno != ENOENT || parent == parent.parent_path()) return Refusal(path, strerror(errno));
    parent = parent.parent_path();
  }
  if (!S_ISDIR(info.st_mode)) return Refusal(path, strerror(ENOTDIR));
  return access(parent.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : Refusal(path, strerror(errno));
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The folder is this user's, or nobody else can have put it there.
absl::Status CheckOwner(const std::string& path) {
  struct stat info;
  struct stat parent;
  if (lstat(path.c_str(), &info) != 0 || IsOwnUser(info.st_uid)) return absl::OkStatus();
  if (stat(std::filesystem::path(path).parent_path().c_str(), &parent) == 0 && (parent.st_mode & S_IWOTH) == 0) {
    return absl::OkStatus();
  }
  return Refusal(path, ForeignOwner(info.st_uid).c_str());
}

struct Candidate {
  std::string path;
  std::string working_dir;  // that it is in; empty: none of ours to choose
};

std::vector<Candidate> ListCandidates(const MarkFolderWishes& wishes) {
  if (!wishes.given.empty()) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(wishes.given, error);
    return {{WithoutSlashes(error ? wishes.given : absolute.string()), ""}};
  }
  std::vector<Candidate> candidates = {{wishes.first, ""}};
  for (const std::string& folder : wishes.working_dirs) {
    if (folder.starts_with('/')) candidates.push_back({absl::StrCat(folder, "/", wishes.name), folder});
  }
  return candidates;
}

// What the thread that looks has found so far; left to it where its storage hangs.
struct Search {
  std::mutex mutex;
  std::condition_variable done;
  std::string looks_at;  // now
  std::string refusal;   // the first one's
  std::optional<MarkFolder> found;
};

// Each by its real path: a link above it that is changed later redirects nothing.
std::string RealPath(const Candidate& candidate) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(candidate.working_dir, error);
  return error ? candidate.path : (real / std::filesystem::path(candidate.path).filename()).string();
}

void Look(const std::vector<Candidate>& candidates, const std::string& task_folder, int64_t unix_s, Search& search) {
  MarkFolder found;
  for (const Candidate& candidate : candidates) {
    {
      std::lock_guard<std::mutex> lock(search.mutex);
      search.looks_at = candidate.path;
    }
    const bool ours = !candidate.working_dir.empty();
    const std::string path = ours ? RealPath(candidate) : candidate.path;
    absl::Status checked = CheckMarkFolder(path, task_folder);
    if (checked.ok() && ours) checked = CheckOwner(path);
    if (checked.ok() && task_folder.empty()) {
      absl::StatusOr<std::string> made = ProfilingDir::MakeDefaultTask(path, unix_s, &found.made);
      checked = made.status();
      if (made.ok()) found.task_folder = *std::move(made);
    }
    if (checked.ok()) {
      found.path = path;
      break;
    }
    if (!found.refusal.empty()) continue;
    found.refusal = std::string(checked.message());
    std::lock_guard<std::mutex> lock(search.mutex);
    search.refusal = found.refusal;
  }
  std::lock_guard<std::mutex> lock(search.mutex);
  search.found = std::move(found);
  search.done.notify_all();
}

}  // namespace

absl::Status CheckMarkFolder(const std::string& path, const std::string& task_folder) {
  struct stat info;
  const std::string task = absl::StrCat(path, "/", task_folder);
  // Who made the folder may have made this one for us in it.
  if (!task_folder.empty() && lstat(task.c_str(), &info) == 0 && lstat(path.c_str(), &info) == 0 &&
      S_ISDIR(info.st_mode)) {
    return CheckFolder(task, task);
  }
  return CheckFolder(path, path);
}

MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience) {
  auto search = std::make_shared<Search>();
  std::thread([search, candidates = ListCandidates(wishes), task = wishes.task_folder, unix_s = wishes.unix_s] {
    Look(candidates, task, unix_s, *search);
  }).detach();
  std::unique_lock<std::mutex> lock(search->mutex);
  const bool found = search->done.wait_for(lock, patience, [&] { return search->found.has_value(); });
  MarkFolder folder = found ? *search->found : MarkFolder{.path = search->looks_at, .refusal = search->refusal};
  if (folder.task_folder.empty()) {
    folder.task_folder = wishes.task_folder.empty() ? DefaultTaskName(wishes.unix_s) : wishes.task_folder;
  }
  return folder;
}

}  // namespace taskd::proxy
