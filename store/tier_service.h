// Executes the frames of a tier below (tier_frame.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/backend.h"
#include "store/connections.h"
#include "store/core.h"
#include "store/memory_budget.h"
#include "store/tier_frame.h"

namespace taskd::store {

// A tier acts for many clients: several of its calls are under way at once, and a call is identified by its id alone.
// So an id is refused while a call with it is under way. A tier may have kMaxTierBacklog in each direction, and gets a
// slice of each round.
class TierService {
 public:
  // `secret` is what tiers have to prove; empty: they need not.
  TierService(Connections* connections, StoreBackend* backend, MemoryBudget* budget, std::string secret)
      : connections_(*connections), backend_(*backend), budget_(*budget), secret_(std::move(secret)) {}

  // Takes a received frame. Pump() executes the frames in order.
  void Take(Connection& connection, std::string_view body);
  // Executes all frames that can be executed now.
  void Pump(Connection& connection);
  void Answer(Connection& connection, const StoreCaller& caller, StoreAnswer answer);
  void SendRevoke(Connection& connection, uint64_t batch, const std::vector<std::string>& keys);

 private:
  void Greet(Connection& connection, const TierFrame& frame);
  void SendHello(Connection& connection, std::vector<std::string> values);
  bool HasRoom(Connection& connection, TierFrame& frame);
  bool Execute(Connection& connection, TierFrame& frame);
  bool ExecuteRequest(Connection& connection, TierFrame& frame);
  void Cancel(Connection& connection, uint64_t id);
  void Refuse(Connection& connection, const StoreCaller& caller);
  void Send(Connection& connection, const TierFrame& frame);

  Connections& connections_;
  StoreBackend& backend_;
  MemoryBudget& budget_;
  const std::string secret_;
};

}  // namespace taskd::store
