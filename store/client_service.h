// Executes a client's requests one after the other, within the limits of a client.
#pragma once

#include "store/backend.h"
#include "store/connections.h"
#include "store/core.h"
#include "store/memory_budget.h"

namespace taskd::store {

// A client is synchronous: while a call is under way, only a request that ends a wait is read. A client may have one
// request (kMaxRequestBytes), and replies of kMaxUnreadReplies plus one answer (core.h, 4) or one list of keys.
class ClientService {
 public:
  ClientService(Connections* connections, StoreBackend* backend, MemoryBudget* budget)
      : connections_(*connections), backend_(*backend), budget_(*budget) {}

  // Executes all calls that can be executed now.
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
