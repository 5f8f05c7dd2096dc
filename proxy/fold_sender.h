// The folds of a node on their way to the manager, over one stream after another. That a stream has taken a message says
// nothing: it may lie in a buffer of either kernel when the connection breaks. So folds are kept until the manager says
// that it has them, and go out again on the next stream, with the numbers that they had; the manager knows those that it
// has already. What there is no room for meanwhile is counted (NodeFolds::dropped).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "proxy/node.h"
#include "taskd/v1/node.pb.h"

namespace taskd::proxy {

// Begin, Write and End: one thread; Taken: any.
class FoldSender {
 public:
  // Messages that the manager has not confirmed; what comes up meanwhile waits in the node.
  static constexpr size_t kMostUnconfirmed = 16;

  // `node` outlives this.
  explicit FoldSender(Node* node) : node_(*node) {}
  FoldSender(const FoldSender&) = delete;
  FoldSender& operator=(const FoldSender&) = delete;

  void Begin();  // a stream
  // Writes the folds that wait, the groups of their ranks before them. False: `write` failed.
  bool Write(const std::function<bool(const v1::NodeMessage&)>& write);
  // The manager has so many sets of this stream. One of an earlier release never says so: then what was written counts
  // as taken.
  void Taken(uint64_t sets);
  // Folds that wait could be written.
  bool has_room() const;
  void End();  // of the stream: what was not confirmed waits again in the node

 private:
  struct Sent {
    uint64_t last_set = 0;  // that it is in
    NodeFolds folds;
  };

  bool WriteSet(const v1::NodeMessage& message, const std::function<bool(const v1::NodeMessage&)>& write);
  bool WriteOne(const NodeFolds& folds, const std::function<bool(const v1::NodeMessage&)>& write);

  Node& node_;
  std::map<int, uint64_t> groups_sent_;  // versions by rank, on this stream
  uint64_t sets_ = 0;                    // written on it

  mutable std::mutex mutex_;  // guards from here
  bool confirms_ = false;     // the manager says what it has
  uint64_t taken_ = 0;
  std::deque<Sent> unconfirmed_;
};

}  // namespace taskd::proxy
