#include "store/tier_service.h"

#include <algorithm>
#include <utility>

#include "common/job_secret.h"

namespace taskd::store {
namespace {

constexpr size_t kMaxTierBacklog = 256 * 1024 * 1024;  // a tier with more unread or blocked bytes is given up
constexpr size_t kMaxTierSlice = 4 * 1024 * 1024;      // bytes of its frames in a round
constexpr size_t kCallOverhead = 224;                  // memory of a call or a wait in all lists, without its keys

bool NoneIsLonger(const std::vector<std::string>& strings, size_t bytes) {
  return std::all_of(strings.begin(), strings.end(), [bytes](const std::string& text) { return text.size() <= bytes; });
}

// Returns true if the numbers of keys and values fit the operation, within the limits of a client's request. A tier may
// send anything.
bool HasRightShape(const StoreRequest& request) {
  if (request.keys.size() > kMaxKeys || !NoneIsLonger(request.keys, kMaxKeyBytes) ||
      !NoneIsLonger(request.values, kMaxValueBytes)) {
    return false;
  }
  const size_t keys = request.keys.size();
  const size_t values = request.values.size();
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kQueuePush:
      return keys == 1 && values == 1;
    case StoreOp::kCompareSet:
      return keys == 1 && values == 2;
    case StoreOp::kAdd:
    case StoreOp::kDelete:
    case StoreOp::kQueuePop:
    case StoreOp::kQueueLen:
    case StoreOp::kBarrier:
      return keys == 1;
    case StoreOp::kMultiSet:
      return keys == values;
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
    case StoreOp::kNumKeys:
    case StoreOp::kListKeys:
    case StoreOp::kPing:
      return true;
    default:
      return false;
  }
}

void EndCall(TierCalls& tier, absl::flat_hash_map<uint64_t, TierCalls::UnderWay>::iterator call) {
  tier.under_way_bytes -= call->second.bytes;
  tier.under_way.erase(call);
}

}  // namespace

void TierService::Take(Connection& connection, std::string_view body) {
  absl::StatusOr<TierFrame> frame = ParseFrame(body);
  if (!frame.ok()) return connections_.Doom(connection, frame.status().message());
  TierCalls& tier = *connection.tier;
  if (!tier.greeted) return Greet(connection, *frame);
  // An acknowledgement is handled at once, because this tier's queued calls may wait for it.
  if (frame->type == TierFrame::Type::kAcknowledge) return backend_.core().Acknowledge(connection.id, frame->id);
  const size_t bytes = BytesOf(frame->keys) + BytesOf(frame->values) + kCallOverhead;
  tier.queue_bytes += bytes;
  tier.queue.push_back({*std::move(frame), bytes});
  if (tier.queue_bytes + tier.under_way_bytes > kMaxTierBacklog) {
    connections_.Doom(connection, "a tier that sends more than can be executed");
  }
}

void TierService::Greet(Connection& connection, const TierFrame& frame) {
  if (frame.type != TierFrame::Type::kHello || frame.number != kTierProtocol) {
    const bool unproven = frame.type != TierFrame::Type::kHello && !secret_.empty();
    return connections_.Doom(connection, unproven ? "the tier sent requests before proving TASKD_TOKEN"
                                                  : "a tier that speaks another version of the protocol");
  }
  TierCalls& tier = *connection.tier;
  if (!secret_.empty()) {
    if (tier.challenge.empty()) {
      tier.challenge = NewChallenge();
      return SendHello(connection, {tier.challenge});
    }
    if (frame.values.size() != 1 || !IsSecretProof(frame.values[0], secret_, tier.challenge)) {
      return connections_.Doom(connection, "a tier that has another TASKD_TOKEN than this store, or none");
    }
  }
  tier.greeted = true;
  connection.received = Connection::Received::kWhole;
  connection.frames->set_max_bytes(kMaxFrameBytes);
  SendHello(connection, {});
}

void TierService::SendHello(Connection& connection, std::vector<std::string> values) {
  TierFrame hello;
  hello.id = static_cast<uint64_t>(backend_.patience_ms());
  hello.number = kTierProtocol;
  hello.values = std::move(values);
  Send(connection, hello);
}

void TierService::Pump(Connection& connection) {
  TierCalls& tier = *connection.tier;
  size_t executed_bytes = 0;
  const TimeSlice slice(kPumpSliceNs);
  while (!connection.doomed && !connection.blocked && !tier.queue.empty() && connection.unread() <= kMaxTierUnread) {
    if (executed_bytes > kMaxTierSlice || slice.is_over()) return connections_.MarkReadyNextRound(connection.id);
    TierFrame& frame = tier.queue.front().frame;
    if (!backend_.MayExecute(frame.op) || !HasRoom(connection, frame)) return connections_.HoldBack(connection);
    ++tier.processed;
    if (!Execute(connection, frame)) {
      --tier.processed;
      connection.blocked = true;
      return;
    }
    executed_bytes += tier.queue.front().bytes;
    tier.queue_bytes -= tier.queue.front().bytes;
    tier.queue.pop_front();
  }
}

bool TierService::HasRoom(Connection& connection, TierFrame& frame) {
  if (frame.type != TierFrame::Type::kRequest) return true;
  StoreRequest request{.op = frame.op, .keys = std::move(frame.keys), .values = {}, .number = 0};
  const bool has_room = budget_.HasRoomForAnswer(connection, request);
  frame.keys = std::move(request.keys);
  return has_room;
}

// Returns false if the frame stays at the head.
bool TierService::Execute(Connection& connection, TierFrame& frame) {
  switch (frame.type) {
    case TierFrame::Type::kRequest:
      return ExecuteRequest(connection, frame);
    case TierFrame::Type::kCancel:
      Cancel(connection, frame.id);
      break;
    case TierFrame::Type::kForget:
      backend_.core().Forget(connection.id, frame.keys);
      break;
    case TierFrame::Type::kWakeBack:
      if (frame.keys.size() == 1) backend_.core().WakeBack(frame.keys[0]);
      break;
    default:
      connections_.Doom(connection, "a tier that sends what only a store above it may");
  }
  return true;
}

// Returns false if the frame stays at the head.
bool TierService::ExecuteRequest(Connection& connection, TierFrame& frame) {
  TierCalls& tier = *connection.tier;
  StoreCall call;
  call.caller = {.stream = connection.id, .id = frame.id, .op = frame.op, .tier = true};
  call.of_this_try = frame.of_this_try;
  call.frame = tier.processed;
  call.request = {
      .op = frame.op, .keys = std::move(frame.keys), .values = std::move(frame.values), .number = frame.number};
  if (!HasRightShape(call.request)) {
    connections_.Doom(connection, "a tier's request with a wrong number of keys or values, or too long ones");
    return true;
  }
  if (!budget_.MayExecute(call.request)) {
    Refuse(connection, call.caller);
    return true;
  }
  const size_t bytes = UnderWayBytesOf(call.request.keys) + kCallOverhead;
  if (HasReply(frame.op)) {
    if (!tier.under_way.try_emplace(frame.id, TierCalls::UnderWay{frame.op, bytes}).second) {
      connections_.Doom(connection, "a tier that gives a call the id of one that is under way");
      return true;
    }
    tier.under_way_bytes += bytes;
  }
  if (backend_.Execute(call) == StoreCore::Result::kDone) return true;
  if (HasReply(frame.op) && tier.under_way.erase(frame.id) > 0) tier.under_way_bytes -= bytes;
  frame.keys = std::move(call.request.keys);
  frame.values = std::move(call.request.values);
  return false;
}

void TierService::Cancel(Connection& connection, uint64_t id) {
  backend_.core().Cancel(connection.id, id);
  TierCalls& tier = *connection.tier;
  auto call = tier.under_way.find(id);
  if (call == tier.under_way.end()) return;
  if (call->second.op == StoreOp::kWait || call->second.op == StoreOp::kBarrier) EndCall(tier, call);
}

// The tier closes the client that asked.
void TierService::Refuse(Connection& connection, const StoreCaller& caller) {
  StoreAnswer answer;
  answer.fault = true;
  Answer(connection, caller, std::move(answer));
}

void TierService::Answer(Connection& connection, const StoreCaller& caller, StoreAnswer answer) {
  TierFrame frame;
  frame.type = answer.fault      ? TierFrame::Type::kFault
               : answer.wake_one ? TierFrame::Type::kWakeOne
                                 : TierFrame::Type::kReply;
  frame.id = caller.id;
  frame.number = answer.number;
  frame.states = std::move(answer.states);
  (answer.wake_one ? frame.keys : frame.values) = std::move(answer.values);
  TierCalls& tier = *connection.tier;
  auto call = tier.under_way.find(caller.id);
  if (call != tier.under_way.end() && !answer.wake_one && HasReply(caller.op)) EndCall(tier, call);
  frame.processed = backend_.core().Confirmed(connection.id, tier.processed);
  Send(connection, frame);
}

void TierService::SendRevoke(Connection& connection, uint64_t batch, const std::vector<std::string>& keys) {
  TierFrame frame;
  frame.type = TierFrame::Type::kRevoke;
  frame.id = batch;
  frame.keys = keys;
  Send(connection, frame);
}

void TierService::Send(Connection& connection, const TierFrame& frame) {
  AppendFrame(frame, connection.out);
  connections_.MarkDirty(connection);
  if (connection.unread() > kMaxTierBacklog) connections_.Doom(connection, "a tier that does not read");
}

}  // namespace taskd::store
