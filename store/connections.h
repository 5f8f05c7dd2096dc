// All connections of a store's server, and what is to be done with which of them before its round ends.
//
// Answers and blocked calls never run other calls from within a core: connections that can go on are noted as ready,
// those to be closed as doomed, and the server looks at both when the round ends (StoreServer, server.cc).
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
  ~Connections();  // closes them

  // Watched from now on.
  Connection& Add(std::unique_ptr<Connection> connection);
  // Null: it is gone, or doomed.
  Connection* Find(uint64_t id);
  const Map& all() const { return map_; }
  size_t size() const { return map_.size(); }
  size_t of(const OwnerKey& owner) const;
  void SetOwner(Connection& connection, const OwnerKey& owner);

  // Closed when the round ends; nothing is read or written any more. `why`: what the peer did; empty: nothing wrong.
  // The first reason of a minute is a warning, the others are for debugging.
  void Doom(Connection& connection, absl::string_view why = "");
  void DoomAll();
  // The oldest of the doomed ones, which is not in all() any more; null: there is none.
  std::unique_ptr<Connection> TakeDoomed();

  // Lists of the round. Taking one empties it.
  void MarkDirty(Connection& connection);
  void MarkReady(const Connection& connection) { ready_.push_back(connection.id); }
  void MarkReadyNextRound(uint64_t id) {
    later_.push_back(id);
    Schedule();
  }
  // Its next call waits until the backend and the budget have room for it.
  void HoldBack(Connection& connection);
  // Of a list that was taken, what had no turn in this round.
  void LeaveDirty(Ids::const_iterator begin, Ids::const_iterator end);
  void LeaveHeldBack(Ids::const_iterator begin, Ids::const_iterator end);
  Ids TakeReady() { return std::exchange(ready_, {}); }
  Ids TakeDirty() { return std::exchange(dirty_, {}); }
  Ids TakeHeldBack() { return std::exchange(held_back_, {}); }
  bool any_held_back() const { return !held_back_.empty(); }
  bool any_ready_or_doomed() const { return !ready_.empty() || !doomed_.empty(); }
  void BeginNextRound();  // with what was left for it
  void ForgetReady();     // and what was held back or left for the next round

  void Schedule();  // on_round_end, when this round of the loop ends

  // Notes anew what the connection keeps in memory.
  void Count(Connection& connection);
  size_t buffered_bytes() const { return buffered_bytes_; }  // of all connections
  size_t unread_bytes_of(const OwnerKey& owner) const;
  size_t unread_bytes() const { return unread_bytes_; }  // the same, of what was sent to clients and tiers
  uint64_t refused() const { return refused_; }          // doomed with a reason

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
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // for the callback that the loop may run after this is gone
};

}  // namespace taskd::store
