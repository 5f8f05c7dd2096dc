#include "store/client_service.h"

#include <utility>

#include "store/wire.h"

namespace taskd::store {
namespace {

bool IsWait(StoreOp op) { return op == StoreOp::kWait || op == StoreOp::kBarrier; }

}  // namespace

void ClientService::Pump(Connection& connection) {
  const TimeSlice slice(kPumpSliceNs);
  while (!connection.doomed && !connection.blocked && connection.client.busy_with == 0 &&
         connection.unread() <= kMaxUnreadReplies) {
    if (!connection.client.head && !TakeHead(connection)) return;
    // Reading and executing a request of very many keys take two turns.
    if (slice.is_over()) return connections_.MarkReadyNextRound(connection.id);
    const StoreRequest& request = connection.client.head->request;
    if (!backend_.MayExecute(request.op) || !budget_.HasRoomForAnswer(connection, request)) {
      return connections_.HoldBack(connection);
    }
    if (!Execute(connection)) return;
  }
}

// Returns false if there is no whole request, or if the bytes are invalid.
bool ClientService::TakeHead(Connection& connection) {
  StoreCall call;
  absl::StatusOr<bool> whole = connection.parser.Next(call.request);
  if (!whole.ok()) {
    connections_.Doom(connection, whole.status().message());
    return false;
  }
  if (!*whole) return false;
  connection.client.head = std::move(call);
  connection.received = Connection::Received::kWhole;
  return true;
}

// Returns false if the call stays at the head.
bool ClientService::Execute(Connection& connection) {
  ClientCalls& client = connection.client;
  StoreCall call = *std::move(client.head);  // an answer may put another call there
  client.head.reset();
  if (!MayExecute(connection, call.request)) return true;
  const StoreOp op = call.request.op;
  const bool waits = IsWait(op);
  const bool validated = connection.parser.dialect() == StoreDialect::k22;
  // A client that cannot cancel has given up its wait when it makes another request. A client never waits twice at
  // once.
  if (client.waits_in != 0 && (op == StoreOp::kCancelWait || !validated || waits)) {
    backend_.core().Cancel(connection.id, client.waits_in);
    client.waits_in = client.wait_bytes = 0;
  }
  call.caller = {.stream = connection.id, .id = ++client.last_call, .op = op, .tier = false};
  call.of_this_try = validated;
  if (waits) {
    client.waits_in = client.last_call;
  } else if (HasReply(op)) {
    client.busy_with = client.last_call;
  }
  const size_t bytes = UnderWayBytesOf(call.request.keys) + BytesOf(call.request.values);
  (waits ? client.wait_bytes : client.call_bytes) = HasReply(op) ? bytes : 0;
  if (backend_.Execute(call) == StoreCore::Result::kDone) return true;
  client.head = std::move(call);
  connection.blocked = true;
  (waits ? client.waits_in : client.busy_with) = 0;
  return false;
}

// Returns false if the connection is doomed.
bool ClientService::MayExecute(Connection& connection, const StoreRequest& request) {
  if (request.op == StoreOp::kWatchKey) {
    connections_.Doom(connection, "WATCH_KEY, which is not served");
  } else if (!budget_.MayExecute(request)) {
    connections_.Doom(connection, "a request for which the store has no memory left");
  }
  return !connection.doomed;
}

void ClientService::Answer(Connection& connection, const StoreCaller& caller, StoreAnswer answer) {
  ClientCalls& client = connection.client;
  if (answer.fault && !HasReply(caller.op)) return connections_.Doom(connection, "a write that was refused");
  if (caller.id == client.busy_with) {
    client.busy_with = client.call_bytes = 0;
  } else if (caller.id == client.waits_in) {
    client.waits_in = client.wait_bytes = 0;
  } else {
    return;  // the client does not wait for this any more
  }
  if (answer.fault) return connections_.Doom(connection, "a request that was refused");
  StoreReply reply;
  reply.number = answer.number;
  reply.values = std::move(answer.values);
  AppendReply(caller.op, reply, connection.out);
  connections_.MarkDirty(connection);
  if (!answer.rest.empty()) {
    client.head.emplace();
    client.head->request.op = caller.op;
    client.head->request.keys = std::move(answer.rest);
  }
  if (connection.HasMore()) connections_.MarkReady(connection);
}

}  // namespace taskd::store
