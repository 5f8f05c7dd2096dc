// What a store does with a client's requests: one after the other, each within what a client may have.
#pragma once

#include "store/backend.h"
#include "store/connections.h"
#include "store/core.h"
#include "store/memory_budget.h"

namespace taskd::store {

// A client is synchronous: while a call of its is under way nothing more of it is read but what ends a wait. It has no
// more than a request (kMaxRequestBytes), and replies of kMaxUnreadReplies and one answer (core.h, 4) or one list of
// keys.
class ClientService {
 public:
  ClientService(Connections* connections, StoreBackend* backend, MemoryBudget* budget)
      : connections_(*connections), backend_(*backend), budget_(*budget) {}

  // Executes what can be executed.
  void Pump(Connection& connection);
  void Answer(Connection& connection, const StoreCaller& caller, StoreAnswer answer);

 private:
  bool TakeHead(Connection& connection);
  bool Execute(Connection& connection);
  bool MayExecute(Connection& connection, const StoreRequest& request);

  Connections& connections_;
  StoreBackend& backend_;
  MemoryBudget& budget_;
};

}  // namespace taskd::store
