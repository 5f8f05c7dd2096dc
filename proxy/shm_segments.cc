#include "proxy/shm_segments.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "taskd/hello.h"
#include "taskd/own_user.h"

namespace taskd::proxy {
namespace {

bool HasOneOf(const std::vector<std::string>& prefixes, std::string_view name) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

// Its writer's lock is free; false also where that cannot be known.
bool IsDead(const std::string& name) {
  UniqueFd fd(open(SegmentPath(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fd.valid() && fcntl(fd.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace

bool SegmentScan::Look(size_t entries,
                       const std::function<void(const std::string& name, const struct stat& info)>& visit) {
  if (folder_ == nullptr) folder_.reset(opendir(hello::kSegmentFolder));
  if (folder_ == nullptr) return true;
  for (size_t i = 0; i < entries; ++i) {
    const dirent* entry = readdir(folder_.get());
    if (entry == nullptr) {
      folder_.reset();
      return true;
    }
    struct stat info;
    if (HasOneOf(prefixes_, entry->d_name) &&
        fstatat(dirfd(folder_.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
        IsOwnUserOrRoot(info.st_uid)) {
      visit(entry->d_name, info);
    }
  }
  return false;
}

std::vector<std::string> SegmentPrefixes(const std::string& socket) {
  std::vector<std::string> prefixes;
  for (uid_t uid : {geteuid(), uid_t{0}}) {
    prefixes.push_back(absl::StrFormat("taskd-%d-%016x-", uid, hello::HashSocketPath(socket.c_str())));
  }
  return prefixes;
}

std::vector<std::string> ListSegments(const std::string& socket) {
  std::vector<std::string> names;
  SegmentScan(SegmentPrefixes(socket))
      .Look(SegmentScan::kEntriesAtOnce, [&](const std::string& name, const struct stat&) { names.push_back(name); });
  return names;
}

std::string SegmentPath(const std::string& name) { return absl::StrCat(hello::kSegmentFolder, "/", name); }

void UnlinkSegment(const std::string& name) {
  if (!name.empty()) unlink(SegmentPath(name).c_str());
}

std::string SegmentNameOf(int fd) {
  char target[256];
  ssize_t length = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target));
  if (length <= 0 || length == sizeof(target)) return {};
  const std::string_view path(target, length);
  const std::string folder = SegmentPath("");
  if (!path.starts_with(folder + "taskd-") || path.ends_with(" (deleted)")) return {};
  std::string name(path.substr(folder.size()));
  return name.find('/') == std::string::npos ? name : std::string();
}

StrangerSweeper::StrangerSweeper(const std::string& socket)
    : own_(SegmentPrefixes(socket)), scan_({absl::StrFormat("taskd-%d-", geteuid())}) {}

void StrangerSweeper::Sweep(uint64_t now_monotonic_ns) {
  const bool was_last = scan_.Look(SegmentScan::kEntriesALook, [&](const std::string& name, const struct stat&) {
    if (HasOneOf(own_, name) || !IsDead(name)) return;
    auto known = dead_since_ns_.find(name);
    const uint64_t since = known == dead_since_ns_.end() ? now_monotonic_ns : known->second;
    if (now_monotonic_ns - since >= kAbandonedNs) {
      spdlog::info("removing {}: its process has ended and no proxy has come for it", SegmentPath(name));
      UnlinkSegment(name);
    } else {
      still_dead_[name] = since;
    }
  });
  if (was_last) dead_since_ns_ = std::exchange(still_dead_, {});
}

}  // namespace taskd::proxy
