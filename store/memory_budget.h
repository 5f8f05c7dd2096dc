// What a store may have in memory, all connections and keys together, and who has to go where it is used up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/event_loop.h"
#include "common/observed_clock.h"
#include "store/backend.h"
#include "store/connections.h"

namespace taskd::store {

class MemoryBudget {
 public:
  // `clock`: its owner looks at it once a second.
  MemoryBudget(uint64_t limit_bytes, Connections* connections, const StoreBackend* backend, ObservedClock* clock)
      : limit_bytes_(limit_bytes), connections_(*connections), backend_(*backend), clock_(*clock) {}

  uint64_t bytes() const { return connections_.buffered_bytes() + backend_.bytes(); }
  // Beyond the limit who wants to write is refused, and others go on reading.
  bool MayExecute(const StoreRequest& request);
  // After it has received, written or executed something. May doom it.
  void Charge(Connection& connection);

  // Whether a request may be executed now as far as its answer goes: a big one waits while its reader's owner has left
  // too much unread, and where this round has had its share. A small one never waits.
  bool HasRoomForAnswer(Connection& connection, const StoreRequest& request);
  // There is an answer more. May doom its reader.
  void Answered(Connection& connection);
  void BeginRound() { round_bytes_ = 0; }
  bool round_is_full() const { return round_bytes_ > kMaxRoundBytes; }
  // Once a second. While others wait for room: those that have not read what was sent to them long ago are doomed.
  void CloseIdleReaders();

 private:
  static constexpr int64_t kLogIntervalNs = 60'000'000'000;

  static constexpr size_t kMaxRoundBytes = size_t{4} << 20;
  static constexpr uint64_t kMaxUnreadBytes = uint64_t{256} << 20;

  bool HasRoom(const Connection& connection, size_t most) const;
  void FindUser(Connection& connection);
  void LogFull();
  uint64_t max_unread_bytes() const { return std::min(kMaxUnreadBytes, limit_bytes_ / 4); }

  const uint64_t limit_bytes_;
  Connections& connections_;
  const StoreBackend& backend_;
  ObservedClock& clock_;
  size_t round_bytes_ = 0;  // of the answers in this round
  bool somebody_waits_ = false;
  int64_t full_logged_ns_ = -kLogIntervalNs;
};

}  // namespace taskd::store
