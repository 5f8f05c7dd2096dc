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

namespace taskd::proxy {
namespace {

std::vector<std::string> ListWithPrefixes(const std::vector<std::string>& prefixes) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(hello::kSegmentFolder), closedir);
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (std::any_of(prefixes.begin(), prefixes.end(),
                    [&](const std::string& prefix) { return name.starts_with(prefix); })) {
      names.emplace_back(name);
    }
  }
  return names;
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

std::vector<std::string> ListSegments(const std::string& socket) {
  std::vector<std::string> prefixes;
  for (uid_t uid : {geteuid(), uid_t{0}}) {
    prefixes.push_back(absl::StrFormat("taskd-%d-%016x-", uid, hello::HashSocketPath(socket.c_str())));
  }
  return ListWithPrefixes(prefixes);
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

void StrangerSweeper::Sweep(uint64_t now_monotonic_ns) {
  const std::vector<std::string> own = ListSegments(socket_);
  std::map<std::string, uint64_t> dead;
  for (const std::string& name : ListWithPrefixes({absl::StrFormat("taskd-%d-", geteuid())})) {
    if (std::find(own.begin(), own.end(), name) != own.end() || !IsDead(name)) continue;
    auto known = dead_since_ns_.find(name);
    const uint64_t since = known == dead_since_ns_.end() ? now_monotonic_ns : known->second;
    if (now_monotonic_ns - since >= kAbandonedNs) {
      spdlog::info("removing {}: its process has ended and no proxy has come for it", SegmentPath(name));
      UnlinkSegment(name);
    } else {
      dead[name] = since;
    }
  }
  dead_since_ns_.swap(dead);
}

}  // namespace taskd::proxy
