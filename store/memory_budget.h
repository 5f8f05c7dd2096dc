// What a store may have in memory, all connections and keys together, and who has to go where it is used up.
#pragma once

#include <cstdint>

#include "common/event_loop.h"
#include "store/backend.h"
#include "store/connections.h"

namespace taskd::store {

class MemoryBudget {
 public:
  MemoryBudget(uint64_t limit_bytes, Connections* connections, const StoreBackend* backend)
      : limit_bytes_(limit_bytes), connections_(*connections), backend_(*backend) {}

  uint64_t bytes() const { return connections_.buffered_bytes() + backend_.bytes(); }
  // Beyond the limit who wants to write is refused, and others go on reading.
  bool MayExecute(const StoreRequest& request);
  // After it has received, written or executed something. May doom it.
  void Charge(Connection& connection);

 private:
  static constexpr int64_t kLogIntervalNs = 60'000'000'000;

  void LogFull();

  const uint64_t limit_bytes_;
  Connections& connections_;
  const StoreBackend& backend_;
  int64_t full_logged_ns_ = -kLogIntervalNs;
};

}  // namespace taskd::store
