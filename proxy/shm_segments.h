// Ring segments by their names in /dev/shm (worker_sdk/include/taskd/hello.h): how a proxy finds what ranks left whose
// processes are gone.
#pragma once

#include <dirent.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace taskd::proxy {

// Looks through /dev/shm for files of this user and root with certain names, a part at a time: anybody may make files with
// such names there, in any number, and who looks for segments also takes marks out of rings. Opens none. Not thread-safe.
class SegmentScan {
 public:
  static constexpr size_t kEntriesALook = 8192;      // some 10 ms
  static constexpr size_t kEntriesAtOnce = 400'000;  // some 0.5 s, where nothing is lost by it

  explicit SegmentScan(std::vector<std::string> prefixes) : prefixes_(std::move(prefixes)) {}

  // Calls visit(name, stat) for what is found among the next `entries` of the folder. True: that was its end; the next call
  // begins anew.
  bool Look(size_t entries, const std::function<void(const std::string& name, const struct stat& info)>& visit);
  void BeginAnew() { folder_.reset(); }
  bool is_under_way() const { return folder_ != nullptr; }

 private:
  struct DirCloser {
    void operator()(DIR* dir) const { closedir(dir); }
  };
  const std::vector<std::string> prefixes_;
  std::unique_ptr<DIR, DirCloser> folder_;
};

// What the names of segments begin with, of ranks of this user and of root, that look for their proxy at `socket`.
std::vector<std::string> SegmentPrefixes(const std::string& socket);
// Names of these segments, within kEntriesAtOnce.
std::vector<std::string> ListSegments(const std::string& socket);

std::string SegmentPath(const std::string& name);
void UnlinkSegment(const std::string& name);

// Name of an open segment; empty for a memfd and for one that was unlinked.
std::string SegmentNameOf(int fd);

// Removes segments of this user that belong to other sockets, after this proxy has seen them without a living writer
// for long: the proxy that could have read them is not coming back. Not thread-safe.
class StrangerSweeper {
 public:
  explicit StrangerSweeper(const std::string& socket);
  // Looks at a part of the folder.
  void Sweep(uint64_t now_monotonic_ns);
  bool is_under_way() const { return scan_.is_under_way(); }

  static constexpr uint64_t kAbandonedNs = 600'000'000'000;

 private:
  const std::vector<std::string> own_;  // prefixes
  SegmentScan scan_;
  std::map<std::string, uint64_t> dead_since_ns_;
  std::map<std::string, uint64_t> still_dead_;  // of the pass that is under way
};

}  // namespace taskd::proxy
