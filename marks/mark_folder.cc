#include "marks/mark_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/foreign_owner.h"
#include "common/task_name.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

// Each node of a large job may have a proxy that starts in the same second.
constexpr int64_t kMostTasksOfASecond = 100'000;

absl::Status Refusal(const std::string& path, const char* why) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
}

// Checks that files can be made in the folder, or that the folder can be made; messages name it `path`. faccessat2()
// would not work here: system call filters of older containers answer EPERM to unknown calls.
absl::Status CheckFolder(const std::string& folder, const std::string& path) {
  struct stat info;
  if (lstat(folder.c_str(), &info) == 0) {
    if (S_ISLNK(info.st_mode)) return Refusal(path, "is a symbolic link, which is refused");
    if (!S_ISDIR(info.st_mode)) return Refusal(path, strerror(ENOTDIR));
    return access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : Refusal(path, strerror(errno));
  }
  if (errno != ENOENT) return Refusal(path, strerror(errno));
  // The folder and its missing parents can be made if the nearest existing parent is writable.
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

// Returns OK if the folder belongs to this user, or if only this user could have created it.
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
  std::string folder;
  bool is_working = false;  // the job gets a folder of its own in it
};

std::vector<Candidate> ListCandidates(const MarkFolderWishes& wishes) {
  if (!wishes.given.empty()) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(wishes.given, error);
    return {{WithoutSlashes(error ? wishes.given : absolute.string())}};
  }
  std::vector<Candidate> candidates = {{wishes.first}};
  for (const std::string& folder : wishes.working_dirs) {
    if (folder.starts_with('/')) candidates.push_back({folder, true});
  }
  return candidates;
}

std::string InFolder(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder == "/" ? "" : folder, "/", name);
}

std::string NameOfJob(const MarkFolderWishes& wishes, const std::string& otherwise) {
  const std::string name = PlainFileName(std::string(absl::StripPrefix(wishes.job, "default/")));
  return absl::StrCat("taskd-", name.empty() ? otherwise : name);
}

std::string FreshName(const Candidate& candidate, const MarkFolderWishes& wishes, int64_t unix_s) {
  if (!candidate.is_working) return DefaultTaskName(unix_s);
  return absl::StrCat(NameOfJob(wishes, "job"),
                      absl::FormatTime("-%Y%m%d-%H%M%S", absl::FromUnixSeconds(unix_s), absl::LocalTimeZone()));
}

// Returns true if TaskD chooses the folder's name: neither MINDX_TASK_ID nor TASKD_TASK_ID gives it.
bool IsNamedByUs(const Candidate& candidate, const MarkFolderWishes& wishes) {
  return wishes.mindx_task_id.empty() && (candidate.is_working || wishes.task_name.empty());
}

// `name` is wishes.name, or the name of the new folder.
MarkFolder PlaceIn(const Candidate& candidate, const MarkFolderWishes& wishes, const std::string& name) {
  const std::string& mindx = wishes.mindx_task_id;
  if (candidate.is_working) {
    return {.path = InFolder(candidate.folder, mindx.empty() ? name : NameOfJob(wishes, mindx)), .task_folder = mindx};
  }
  return {.path = candidate.folder,
          .task_folder = !mindx.empty()              ? mindx
                         : !wishes.task_name.empty() ? PlainFileName(wishes.task_name)
                                                     : name};
}

// Makes a new folder, named by the first second from now on whose name is free. Returns its name.
absl::StatusOr<std::string> MakeFresh(const Candidate& candidate, const MarkFolderWishes& wishes,
                                      std::vector<std::string>* made) {
  if (absl::Status there = MakeFolders(candidate.folder, made); !there.ok()) return there;
  absl::StatusOr<UniqueFd> folder = OpenFolder(candidate.folder);
  if (!folder.ok()) return folder.status();
  for (int64_t second = wishes.unix_s; second < wishes.unix_s + kMostTasksOfASecond; ++second) {
    std::string name = FreshName(candidate, wishes, second);
    const std::string path = InFolder(candidate.folder, name);
    if (mkdirat(folder->get(), name.c_str(), 0755) == 0) {
      made->push_back(path);
      return name;
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, path);
  }
  return absl::ResourceExhaustedError(absl::StrCat(candidate.folder, ": has too many folders ",
                                                   FreshName(candidate, wishes, wishes.unix_s), " and on"));
}

// Returns OK if <path>/<task_folder> is writable, or else an error with the path: "/x: Permission denied".
absl::Status CheckPlace(const MarkFolder& place) {
  struct stat info;
  const std::string task = place.TaskPath();
  // The owner of the folder may have made the task's folder in it for this user.
  if (!place.task_folder.empty() && lstat(task.c_str(), &info) == 0 && lstat(place.path.c_str(), &info) == 0 &&
      S_ISDIR(info.st_mode)) {
    return CheckFolder(task, task);
  }
  return CheckFolder(place.path, place.path);
}

absl::StatusOr<MarkFolder> Try(Candidate candidate, const MarkFolderWishes& wishes) {
  std::vector<std::string> made;
  std::string name = wishes.name;
  if (candidate.is_working) {
    // With the real path, a link above the folder that changes later redirects nothing.
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(candidate.folder, error);
    if (!error) candidate.folder = real.string();
  }
  const bool by_us = IsNamedByUs(candidate, wishes);
  if (by_us && name.empty()) {
    if (absl::Status checked = CheckFolder(candidate.folder, candidate.folder); !checked.ok()) return checked;
    absl::StatusOr<std::string> fresh = MakeFresh(candidate, wishes, &made);
    if (!fresh.ok()) return fresh.status();
    name = *std::move(fresh);
  }
  MarkFolder place = PlaceIn(candidate, wishes, name);
  absl::Status checked = CheckPlace(place);
  if (checked.ok() && candidate.is_working) checked = CheckOwner(place.path);
  if (!checked.ok()) return checked;
  if (by_us && made.empty()) made = {place.TaskPath()};  // the job's launcher has made it
  place.made = std::move(made);
  return place;
}

// The results of the search thread so far. The thread keeps this alive if its storage hangs.
struct Search {
  std::mutex mutex;
  std::condition_variable done;
  Candidate looks_at;   // the candidate that is being checked
  std::string refusal;  // refusal of the first candidate
  std::optional<MarkFolder> found;
};

void Look(const MarkFolderWishes& wishes, Search& search) {
  MarkFolder found;
  std::string refusal;
  for (const Candidate& candidate : ListCandidates(wishes)) {
    {
      std::lock_guard<std::mutex> lock(search.mutex);
      search.looks_at = candidate;
    }
    absl::StatusOr<MarkFolder> place = Try(candidate, wishes);
    if (place.ok()) {
      found = *std::move(place);
      break;
    }
    if (!refusal.empty()) continue;
    refusal = std::string(place.status().message());
    std::lock_guard<std::mutex> lock(search.mutex);
    search.refusal = refusal;
  }
  found.refusal = std::move(refusal);
  std::lock_guard<std::mutex> lock(search.mutex);
  search.found = std::move(found);
  search.done.notify_all();
}

}  // namespace

std::string MarkFolder::TaskPath() const { return task_folder.empty() ? path : InFolder(path, task_folder); }

std::string MarkFolder::Name() const {
  const std::string task = TaskPath();
  return task.substr(task.rfind('/') + 1);
}

absl::Status MakeFolders(const std::string& path, std::vector<std::string>* made) {
  size_t slash = 0;
  do {
    slash = path.find('/', slash + 1);
    std::string folder = path.substr(0, slash);
    if (mkdir(folder.c_str(), 0755) == 0) {
      made->push_back(std::move(folder));
    } else if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, folder);
    }
  } while (slash != std::string::npos);
  return absl::OkStatus();
}

MarkFolderWishes WishesOfEnvironment(const Environment& environment) {
  std::error_code error;
  MarkFolderWishes wishes;
  wishes.given = ValueOf(environment, "TASKD_PROFILING_DIR");
  wishes.working_dirs = {ValueOf(environment, "SLURM_SUBMIT_DIR"), std::filesystem::current_path(error).string()};
  wishes.mindx_task_id = ValueOf(environment, "MINDX_TASK_ID");
  wishes.task_name = ValueOf(environment, "TASKD_TASK_ID");
  wishes.name = ValueOf(environment, "TASKD_MARK_FOLDER");
  wishes.job = ValueOf(environment, "TASKD_JOB");
  wishes.unix_s = time(nullptr);
  return wishes;
}

MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience) {
  auto search = std::make_shared<Search>();
  std::thread([search, wishes] { Look(wishes, *search); }).detach();
  std::unique_lock<std::mutex> lock(search->mutex);
  if (search->done.wait_for(lock, patience, [&] { return search->found.has_value(); })) return *search->found;
  const Candidate& hangs = search->looks_at;
  MarkFolder folder =
      PlaceIn(hangs, wishes, wishes.name.empty() ? FreshName(hangs, wishes, wishes.unix_s) : wishes.name);
  folder.refusal = search->refusal;
  return folder;
}

}  // namespace taskd
