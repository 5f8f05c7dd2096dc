// Holds all connections of a store's server, and lists the work that has to be done before its round ends.
//
// A core never runs other calls from within an answer or a blocked call. Instead, connections that can go on are marked
// as ready and those to be closed as doomed, and the server handles both when the round ends (StoreServer, server.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/event_loop.h"
#include "store/connection.h"

namespace taskd::store {

class Connections {
 public:
  struct Callbacks {
    std::function<void(uint64_t id, uint32_t events)> on_event;
    std::function<void()> on_round_end;  // once after each Schedule()
  };
  using Ids = std::vector<uint64_t>;
  using Map = absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>>;

  Connections(EventLoop* loop, Callbacks callbacks) : loop_(*loop), callbacks_(std::move(callbacks)) {}
  ~Connections();  // closes all connections

  // Adds the connection and watches it from now on.
  Connection& Add(std::unique_ptr<Connection> connection);
  // Returns null if the connection is gone or doomed.
  Connection* Find(uint64_t id);
  const Map& all() const { return map_; }
  size_t size() const { return map_.size(); }
  size_t of(const OwnerKey& owner) const;
  void SetOwner(Connection& connection, const OwnerKey& owner);

  // Closes the connection when the round ends; until then nothing is read or written. `why` says what the peer did
  // wrong; empty: nothing. The first reason in a minute is logged as a warning, the others for debugging.
  void Doom(Connection& connection, absl::string_view why = "");
  void DoomAll();
  // Takes the oldest doomed connection out of all(). Returns null if there is none.
  std::unique_ptr<Connection> TakeDoomed();

  // These are the lists of the round. Taking one empties it.
  void MarkDirty(Connection& connection);
  void MarkReady(const Connection& connection) { ready_.push_back(connection.id); }
  void MarkReadyNextRound(uint64_t id) {
    later_.push_back(id);
    Schedule();
  }
  // Delays the connection's next call until the backend and the budget have room for it.
  void HoldBack(Connection& connection);
  // Put back the part of a taken list that had no turn in this round.
  void LeaveDirty(Ids::const_iterator begin, Ids::const_iterator end);
  void LeaveHeldBack(Ids::const_iterator begin, Ids::const_iterator end);
  Ids TakeReady() { return std::exchange(ready_, {}); }
  Ids TakeDirty() { return std::exchange(dirty_, {}); }
  Ids TakeHeldBack() { return std::exchange(held_back_, {}); }
  bool any_held_back() const { return !held_back_.empty(); }
  bool any_ready_or_doomed() const { return !ready_.empty() || !doomed_.empty(); }
  void BeginNextRound();  // with the connections that were left for it
  void ForgetReady();     // also forgets those that were held back or left for the next round

  void Schedule();  // calls on_round_end when this round of the loop ends

  // Updates the sums of the memory that connections keep.
  void Count(Connection& connection);
  size_t buffered_bytes() const { return buffered_bytes_; }  // over all connections
  size_t unread_bytes_of(const OwnerKey& owner) const;
  size_t unread_bytes() const { return unread_bytes_; }  // bytes that clients and tiers have not read yet
  uint64_t refused() const { return refused_; }          // number of connections that were doomed with a reason

 private:
  EventLoop& loop_;
  const Callbacks callbacks_;
  Map map_;
  struct OfOwner {
    size_t connections = 0;
    size_t unread_bytes = 0;
  };
  void Disown(const Connection& connection);

  absl::flat_hash_map<OwnerKey, OfOwner> of_owner_;
  uint64_t next_id_ = 1;
  Ids ready_;
  Ids later_;
  Ids dirty_;
  Ids held_back_;
  std::deque<uint64_t> doomed_;
  bool scheduled_ = false;
  size_t buffered_bytes_ = 0;
  size_t unread_bytes_ = 0;
  static constexpr int64_t kRefusalLogIntervalNs = 60'000'000'000;
  uint64_t refused_ = 0;
  std::optional<int64_t> refusal_logged_ns_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // the loop may run a callback after this object is gone
};

}  // namespace taskd::store
