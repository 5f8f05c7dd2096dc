// Ring segments by their names in /dev/shm (worker_sdk/include/taskd/hello.h): how a proxy finds what ranks left whose
// processes are gone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace taskd::proxy {

// Names of the segments of ranks, of this user and of root, that look for their proxy at `socket`.
std::vector<std::string> ListSegments(const std::string& socket);

std::string SegmentPath(const std::string& name);
void UnlinkSegment(const std::string& name);

// Name of an open segment; empty for a memfd and for one that was unlinked.
std::string SegmentNameOf(int fd);

// Removes segments of this user that belong to other sockets, after this proxy has seen them without a living writer
// for long: the proxy that could have read them is not coming back. Not thread-safe.
class StrangerSweeper {
 public:
  explicit StrangerSweeper(std::string socket) : socket_(std::move(socket)) {}
  void Sweep(uint64_t now_monotonic_ns);

  static constexpr uint64_t kAbandonedNs = 600'000'000'000;

 private:
  const std::string socket_;
  std::map<std::string, uint64_t> dead_since_ns_;
};

}  // namespace taskd::proxy
