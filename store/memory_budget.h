// Limits a store's memory for all connections and keys together, and dooms connections when the limit is reached.
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
  // The owner of `clock` looks at it once a second.
  MemoryBudget(uint64_t limit_bytes, Connections* connections, const StoreBackend* backend, ObservedClock* clock)
      : limit_bytes_(limit_bytes), connections_(*connections), backend_(*backend), clock_(*clock) {}

  uint64_t bytes() const { return connections_.buffered_bytes() + backend_.bytes(); }
  // Returns true if the request may be executed. Beyond the limit writes are refused, and reads go on.
  bool MayExecute(const StoreRequest& request);
  // To be called after the connection has received, written or executed something. May doom it.
  void Charge(Connection& connection);

  // Returns true if there is room for the answer to this request now. A big answer has to wait while the owner of its
  // reader has too many unread bytes, or if this round has had its share. A small one never waits.
  bool HasRoomForAnswer(Connection& connection, const StoreRequest& request);
  // To be called after an answer was added. May doom its reader.
  void Answered(Connection& connection);
  void BeginRound() { round_bytes_ = 0; }
  bool round_is_full() const { return round_bytes_ > kMaxRoundBytes; }
  // To be called once a second. While others wait for room, dooms the connections that have not read their answers for
  // long.
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
  size_t round_bytes_ = 0;  // size of the answers in this round
  bool somebody_waits_ = false;
  int64_t full_logged_ns_ = -kLogIntervalNs;
};

}  // namespace taskd::store
