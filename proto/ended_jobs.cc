#include "proto/ended_jobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/realtime.h"
#include "common/runtime_dir.h"

namespace taskd::proto {
namespace {

constexpr char kFolder[] = "ended";
constexpr int64_t kNsPerDay = int64_t{86'400} * 1'000'000'000;

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};

struct Entry {
  std::string name;
  int64_t ended_ns = 0;
  int64_t bytes = 0;
};

// The newest first.
std::vector<Entry> ListFolder(int folder) {
  std::vector<Entry> entries;
  std::unique_ptr<DIR, DirCloser> dir(fdopendir(fcntl(folder, F_DUPFD_CLOEXEC, 0)));
  while (const dirent* found = dir == nullptr ? nullptr : readdir(dir.get())) {
    Entry entry = {found->d_name};
    struct stat info;
    if (!absl::SimpleAtoi(entry.name.substr(0, entry.name.find('-')), &entry.ended_ns) ||
        fstatat(folder, found->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    entry.bytes = info.st_size;
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.ended_ns > b.ended_ns; });
  return entries;
}

// All but the newest, which is what was just written.
void RemoveOld(int folder, int64_t now_ns) {
  const std::vector<Entry> entries = ListFolder(folder);
  int64_t bytes = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    bytes += entries[i].bytes;
    const bool is_old = now_ns - entries[i].ended_ns > kEndedJobDays * kNsPerDay;
    if (i > 0 && (i >= kMostEndedJobs || is_old || bytes > kEndedJobBytes)) {
      unlinkat(folder, entries[i].name.c_str(), 0);
    }
  }
}

}  // namespace

absl::Status KeepEndedJob(v1::EndedJob job) {
  absl::StatusOr<std::string> path = RuntimeDir(kFolder);
  if (!path.ok()) return path.status();
  absl::StatusOr<UniqueFd> folder = OpenOwnDir(*path, true);
  if (!folder.ok()) return folder.status();
  std::string bytes = job.SerializeAsString();
  if (static_cast<int64_t>(bytes.size()) > kEndedJobBytes / 2) {
    job.mutable_status()->clear_nodes();
    bytes = job.SerializeAsString();
  }
  const int64_t now_ns = RealtimeNs();
  const std::string name = absl::StrCat(now_ns, "-", getpid());
  absl::Status status = WriteFileAtomically(folder->get(), name, bytes, absl::StrCat(*path, "/", name));
  if (status.ok()) RemoveOld(folder->get(), now_ns);
  return status;
}

std::vector<KeptJob> ListEndedJobs() {
  std::vector<std::pair<int64_t, KeptJob>> found;
  for (const std::string& runtime : RuntimeDirCandidates()) {
    const std::string path = absl::StrCat(runtime, "/", kFolder);
    absl::StatusOr<UniqueFd> folder = OpenOwnDir(path, false);
    if (!folder.ok()) continue;
    for (const Entry& entry : ListFolder(folder->get())) {
      absl::StatusOr<std::string> bytes =
          ReadFile(entry.name, kEndedJobBytes, {.folder = folder->get(), .only_own = true});
      KeptJob kept = {absl::StrCat(path, "/", entry.name), {}};
      if (bytes.ok() && kept.job.ParseFromString(*bytes)) found.emplace_back(entry.ended_ns, std::move(kept));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<KeptJob> jobs;
  for (auto& [ended_ns, job] : found) jobs.push_back(std::move(job));
  return jobs;
}

absl::Status RemoveEndedJob(const KeptJob& job) {
  if (unlink(job.path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(job.path, ": ", strerror(errno)));
}

std::string MarkFolderOf(const v1::JobStatus& status) {
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::MarkFiles& files = node.mark_files();
    if (!files.dir().empty()) return files.task().empty() ? files.dir() : absl::StrCat(files.dir(), "/", files.task());
  }
  return "";
}

}  // namespace taskd::proto
