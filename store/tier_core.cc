#include "store/tier_core.h"

#include <algorithm>
#include <iterator>

namespace taskd::store {
namespace {

constexpr size_t kWrittenBeforeProbe = 4096;

bool WantsValues(StoreOp op) { return op == StoreOp::kGet || op == StoreOp::kMultiGet; }

// Returns a key that is equal for requests that one answer serves.
std::string Signature(StoreOp op, const std::vector<std::string>& keys) {
  std::string signature(1, static_cast<char>(op));
  for (const std::string& key : keys) {
    const auto size = static_cast<uint32_t>(key.size());
    signature.append(reinterpret_cast<const char*>(&size), sizeof(size));
    signature += key;
  }
  return signature;
}

// Returns a client's answer from the states and values of a reply, which may cover the first keys only.
StoreAnswer ReadAnswer(const StoreCall& call, const std::vector<uint8_t>& states,
                       const std::vector<std::string>& values) {
  StoreAnswer answer;
  const std::vector<std::string>& keys = call.request.keys;
  const bool all = states.size() == keys.size();
  if (WantsValues(call.caller.op) && !all && states.size() < keys.size() && !states.empty()) {
    answer.rest.assign(keys.begin() + static_cast<ptrdiff_t>(states.size()), keys.end());
  } else if (!all) {
    answer.fault = true;  // a TaskD store does not answer like this
    return answer;
  }
  if (call.caller.op == StoreOp::kCheck) {
    answer.number = std::all_of(states.begin(), states.end(), [](uint8_t state) { return state & kPresent; });
    return answer;
  }
  if (call.caller.op == StoreOp::kWait) return answer;
  auto value = values.begin();
  for (uint8_t state : states) {
    const bool has_value = (state & kHasValue) != 0 && value != values.end();
    if (!has_value && !call.of_this_try) answer.fault = true;  // the root does the same
    answer.values.push_back(has_value ? *value++ : std::string());
  }
  return answer;
}

}  // namespace

StoreCore::Result TierCore::Execute(StoreCall& call) {
  const StoreCaller& caller = call.caller;
  StoreRequest& request = call.request;
  if (caller.tier) tiers_.insert(caller.stream);
  if (sharing_.WhenUnlocked(request.keys, [this, stream = caller.stream] { host_.resume(stream); })) {
    return Result::kBlocked;
  }
  switch (request.op) {
    case StoreOp::kGet:
    case StoreOp::kMultiGet:
    case StoreOp::kCheck:
    case StoreOp::kWait:
      if (!AnswerFromCopies(call)) Join(std::move(call));
      return Result::kDone;
    case StoreOp::kAdd:
      AddToCounter(call);
      return Result::kDone;
    case StoreOp::kPing:
    case StoreOp::kCancelWait:  // Cancel() has ended the wait
      return AnswerPing(call);
    default:
      return PassThrough(call);
  }
}

// Only values that are here count: those from above are unknown until they come.
size_t TierCore::AnswerBytes(const StoreRequest& request, size_t enough) const {
  size_t bytes = 0;
  if (!WantsValues(request.op)) return bytes;
  for (auto key = request.keys.begin(); key != request.keys.end() && bytes <= enough; ++key) {
    auto copy = copies_.find(*key);
    bytes += kStringOverhead + (copy == copies_.end() ? 0 : copy->second.value.size());
  }
  return bytes;
}

void TierCore::AddToCounter(const StoreCall& call) {
  const std::string& key = call.request.keys[0];
  Counter& counter = counters_[key];
  if (counter.next.empty() && counter.sent.empty()) unsent_counters_.push_back(key);
  counter.next.push_back({call.caller, call.request.number});
  counter.of_this_try = counter.of_this_try || call.of_this_try;
}

StoreCore::Result TierCore::AnswerPing(StoreCall& call) {
  if (unseen_.AnyOf(call.caller.stream)) {
    call.request.op = StoreOp::kPing;
    return PassThrough(call);
  }
  StoreAnswer answer;
  answer.number = call.request.number;
  host_.answer(call.caller, std::move(answer));
  return Result::kDone;
}

void TierCore::Send(const TierFrame& frame) {
  unseen_.NextFrame();
  send_(frame);
}

// Notes that the last frame sent has changed these keys, or has given up their copies.
void TierCore::Written(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    DropCopy(key);
    unseen_.AddKey(key);
  }
  // If clients only write, a probe is needed to learn which writes have been executed, so that they can be forgotten.
  if (unseen_.keys() > kWrittenBeforeProbe && !probing_) {
    probing_ = true;
    TierFrame probe;
    probe.type = TierFrame::Type::kRequest;
    probe.op = StoreOp::kPing;
    probe.id = 0;
    Send(probe);
  }
}

StoreCore::Result TierCore::PassThrough(StoreCall& call) {
  const StoreCaller& caller = call.caller;
  StoreRequest& request = call.request;
  if (IsWrite(request.op) && !sharing_.Revoke(request.keys, caller.tier ? caller.stream : 0,
                                              [this, stream = caller.stream] { host_.resume(stream); })) {
    return Result::kBlocked;
  }
  TierFrame frame;
  frame.type = TierFrame::Type::kRequest;
  frame.op = request.op;
  frame.of_this_try = call.of_this_try;
  frame.number = request.number;
  frame.keys = request.keys;
  frame.values = std::move(request.values);
  frame.id = next_id_++;
  const uint64_t id = frame.id;
  if (HasReply(request.op)) {
    passed_through_[id] = caller;
    if (request.op == StoreOp::kBarrier) {
      waiting_[caller.stream][caller.id] = {.sent = id, .place = 0};
      ++waiting_count_;
    }
  }
  Send(frame);
  if (!HasReply(request.op)) unseen_.AddSilent(call, id);
  if (IsWrite(request.op)) Written(request.keys);
  return Result::kDone;
}

bool TierCore::AnswerFromCopies(const StoreCall& call) {
  const StoreCaller& caller = call.caller;
  if (unseen_.AnyOf(caller.stream)) return false;
  const bool wants_values = WantsValues(caller.op);
  TierFrame reply;
  size_t bytes = 0;
  for (const std::string& key : call.request.keys) {
    const bool full = bytes >= kMaxAnswerBytes;
    if (full && wants_values) break;
    auto found = copies_.find(key);
    if (found == copies_.end()) return false;
    const Copy& copy = found->second;
    if (caller.op == StoreOp::kWait && !copy.present) return false;
    if (wants_values && copy.present && !copy.has_value) return false;
    uint8_t state = kCopy | (copy.present ? kPresent : 0);
    if (copy.has_value && !full && (wants_values || copy.value.size() <= kMaxUnaskedBytes)) {
      state |= kHasValue;
      bytes += copy.value.size() + kStringOverhead;
      if (wants_values || caller.tier) reply.values.push_back(copy.value);
    }
    reply.states.push_back(state);
  }
  AnswerJoiner(call, reply, true);
  return true;
}

// Answers the caller from the reply. A tier below gets copies of keys of which this tier has copies. It gets none if it
// has gone meanwhile, because it would never give them back, or if the copies may be newer than the reply.
void TierCore::AnswerJoiner(const StoreCall& call, const TierFrame& reply, bool may_copy) {
  if (reply.type == TierFrame::Type::kFault) {
    StoreAnswer answer;
    answer.fault = true;
    host_.answer(call.caller, std::move(answer));
    return;
  }
  if (!call.caller.tier) {
    host_.answer(call.caller, ReadAnswer(call, reply.states, reply.values));
    return;
  }
  if (!tiers_.contains(call.caller.stream)) return;
  StoreAnswer answer;
  answer.states = reply.states;
  answer.values = reply.values;
  for (size_t i = 0; i < answer.states.size() && i < call.request.keys.size(); ++i) {
    const std::string& key = call.request.keys[i];
    if (!may_copy || !copies_.contains(key) || sharing_.IsLocked(key) || !sharing_.MayGrant(key))
      answer.states[i] &= ~kCopy;
    if (answer.states[i] & kCopy) sharing_.Grant(key, call.caller.stream);
  }
  host_.answer(call.caller, std::move(answer));
}

bool TierCore::MayJoin(const StoreCall& call, const Flight& flight) const {
  // The caller may have sent a write without a reply after the flight had left.
  if (unseen_.AnySince(call.caller.stream, flight.sequence)) return false;
  // A wait for several keys settles at its begin which of them are missing; a later deletion does not matter to it.
  if (flight.op == StoreOp::kWait) return flight.keys.size() == 1 || !flight.flushed;
  return std::none_of(flight.keys.begin(), flight.keys.end(),
                      [&](const std::string& key) { return unseen_.IsWrittenSince(key, flight.sequence); });
}

// Joins an equal request that is under way, or sends the request.
void TierCore::Join(StoreCall call) {
  const StoreOp op = call.request.op == StoreOp::kGet ? StoreOp::kMultiGet : call.request.op;
  const std::string signature = Signature(op, call.request.keys);
  auto found = by_signature_.find(signature);
  Flight* flight = found == by_signature_.end() ? nullptr : &flights_.at(found->second);
  if (flight != nullptr && !MayJoin(call, *flight)) flight = nullptr;
  uint64_t id = flight == nullptr ? next_id_++ : found->second;
  if (flight == nullptr) {
    TierFrame frame;
    frame.type = TierFrame::Type::kRequest;
    frame.op = op;
    frame.id = id;
    frame.keys = call.request.keys;
    Send(frame);
    flight = &flights_[id];
    flight->op = op;
    flight->sequence = unseen_.sent();
    flight->keys = call.request.keys;
    by_signature_[signature] = id;
    unflushed_.push_back(id);
  }
  const uint64_t place = next_place_++;
  if (op == StoreOp::kWait) {
    auto [waiting, added] = waiting_[call.caller.stream].insert_or_assign(call.caller.id, Waiting{id, place});
    if (added) ++waiting_count_;
  }
  const bool late = flight->flushed;
  flight->joiners.emplace_hint(flight->joiners.end(), place, Joiner{std::move(call), late});
}

// Executes a call that was taken before and so cannot be given back to its stream.
void TierCore::Retry(StoreCall call) {
  if (sharing_.WhenUnlocked(call.request.keys, [this, call] { Retry(call); })) return;
  if (!AnswerFromCopies(call)) Join(std::move(call));
}

void TierCore::BeforeFlush() {
  std::vector<std::string> keys;
  keys.swap(unsent_counters_);
  for (const std::string& key : keys) SendAdds(key);
}

void TierCore::Flushed() {
  for (uint64_t id : unflushed_) {
    auto flight = flights_.find(id);
    if (flight != flights_.end()) flight->second.flushed = true;
  }
  unflushed_.clear();
}

void TierCore::SendAdds(const std::string& key) {
  auto found = counters_.find(key);
  if (found == counters_.end() || !found->second.sent.empty() || found->second.next.empty()) return;
  if (sharing_.WhenUnlocked({key}, [this, key] { SendAdds(key); })) return;
  if (!sharing_.Revoke({key}, 0, [this, key] { SendAdds(key); })) return;

  Counter& counter = found->second;
  counter.sent = std::move(counter.next);
  counter.next.clear();
  uint64_t sum = 0;
  for (const Adding& adding : counter.sent) sum += static_cast<uint64_t>(adding.delta);
  TierFrame frame;
  frame.type = TierFrame::Type::kRequest;
  frame.op = StoreOp::kAdd;
  frame.id = next_id_++;
  frame.of_this_try = counter.of_this_try;
  frame.number = static_cast<int64_t>(sum);
  frame.keys = {key};
  adds_[frame.id] = key;
  Send(frame);
  Written({key});
}

void TierCore::AddReplied(const TierFrame& reply) {
  auto add = adds_.find(reply.id);
  const std::string key = std::move(add->second);
  adds_.erase(add);
  auto found = counters_.find(key);
  std::vector<Adding> sent = std::move(found->second.sent);
  found->second.sent.clear();
  if (found->second.next.empty()) {
    counters_.erase(found);
  } else {
    unsent_counters_.push_back(key);
  }
  auto value = static_cast<uint64_t>(reply.number);
  for (const Adding& adding : sent) value -= static_cast<uint64_t>(adding.delta);
  added_.push_back({std::move(sent), 0, value, reply.type == TierFrame::Type::kFault});
}

void TierCore::Received(TierFrame frame) {
  ++turn_;
  switch (frame.type) {
    case TierFrame::Type::kReply:
    case TierFrame::Type::kFault:
      return Replied(std::move(frame));
    case TierFrame::Type::kWakeOne:
      if (!frame.keys.empty()) woken_.emplace_back(frame.id, std::move(frame.keys[0]));
      return DoWork();
    case TierFrame::Type::kRevoke:
      return Revoke(frame.id, frame.keys);
    default:
      return;
  }
}

void TierCore::Replied(TierFrame frame) {
  unseen_.Executed(frame.processed);
  if (frame.id == 0) probing_ = false;
  if (adds_.contains(frame.id)) {
    AddReplied(frame);
  } else if (passed_through_.contains(frame.id)) {
    PassedThroughReplied(std::move(frame));
  } else if (flights_.contains(frame.id)) {
    FlightReplied(std::move(frame));
  } else if (frame.type == TierFrame::Type::kFault) {
    SilentWriteFailed(frame.id);
  }
  unseen_.ForgetExecuted();
  DoWork();
}

void TierCore::PassedThroughReplied(TierFrame frame) {
  auto passed = passed_through_.find(frame.id);
  const StoreCaller caller = passed->second;
  passed_through_.erase(passed);
  if (caller.op == StoreOp::kBarrier) EndWaiting(caller, 0);
  StoreAnswer answer;
  answer.number = frame.number;
  answer.values = std::move(frame.values);
  answer.fault = frame.type == TierFrame::Type::kFault;
  host_.answer(caller, std::move(answer));
}

// The writer gets the error, though it awaits no answer.
void TierCore::SilentWriteFailed(uint64_t id) {
  const StoreCaller* found = unseen_.FindSilent(id);
  if (found == nullptr) return;
  const StoreCaller caller = *found;
  StoreAnswer answer;
  answer.fault = true;
  host_.answer(caller, std::move(answer));
}

TierCore::Flight TierCore::TakeFlight(uint64_t id) {
  auto found = flights_.find(id);
  Flight flight = std::move(found->second);
  flights_.erase(found);
  auto newest = by_signature_.find(Signature(flight.op, flight.keys));
  if (newest != by_signature_.end() && newest->second == id) by_signature_.erase(newest);
  return flight;
}

void TierCore::FlightReplied(TierFrame reply) {
  Flight flight = TakeFlight(reply.id);
  TakeCopies(reply, flight.keys);
  landed_.push_back({std::move(flight), std::move(reply), turn_});
}

void TierCore::TakeCopies(const TierFrame& reply, const std::vector<std::string>& keys) {
  auto full = [&] { return copies_.size() + keys.size() > kMaxCopies || copy_bytes_ > kMaxCopyBytes; };
  if (full()) DropUnsharedCopies();
  if (full()) return;  // the store above may believe in a copy here: it will only revoke it
  auto value = reply.values.begin();
  for (size_t i = 0; i < keys.size() && i < reply.states.size(); ++i) {
    const uint8_t state = reply.states[i];
    const std::string* its_value = nullptr;
    if (state & kHasValue) {
      if (value == reply.values.end()) return;
      its_value = &*value++;
    }
    if (!(state & kCopy) || unseen_.IsWrittenSince(keys[i], reply.processed)) continue;
    auto [found, added] = copies_.try_emplace(keys[i]);
    if (added) copy_bytes_ += keys[i].size() + kEntryOverhead;
    Copy& copy = found->second;
    copy.present = state & kPresent;
    if (its_value == nullptr || copy.has_value) continue;
    copy.has_value = true;
    copy.value = *its_value;
    copy_bytes_ += copy.value.size();
  }
}

void TierCore::DropCopy(const std::string& key) {
  auto found = copies_.find(key);
  if (found == copies_.end()) return;
  copy_bytes_ -= key.size() + found->second.value.size() + kEntryOverhead;
  copies_.erase(found);
}

// Makes room for new copies. Copies that tiers below hold stay.
void TierCore::DropUnsharedCopies() {
  TierFrame frame;
  frame.type = TierFrame::Type::kForget;
  for (const auto& [key, copy] : copies_) {
    if (!sharing_.HasCopies(key) && !sharing_.IsLocked(key)) frame.keys.push_back(key);
  }
  if (frame.keys.empty()) return;
  std::vector<std::string> keys = frame.keys;
  Send(frame);
  Written(keys);
}

void TierCore::Revoke(uint64_t batch, const std::vector<std::string>& keys) {
  if (sharing_.WhenUnlocked(keys, [this, batch, keys] { Revoke(batch, keys); })) return;
  auto done = [this, batch, keys] {
    for (const std::string& key : keys) DropCopy(key);
    TierFrame frame;
    frame.type = TierFrame::Type::kAcknowledge;
    frame.id = batch;
    send_(frame);  // acknowledgements are not counted, because they overtake earlier frames
  };
  if (sharing_.Revoke(keys, 0, done)) done();
}

void TierCore::WakeBack(const std::string& key) {
  PassWakeOn(key);
  DoWork();
}

void TierCore::PassWakeOn(const std::string& key) {
  // Another client of this tier may wait for the element.
  auto found = by_signature_.find(Signature(StoreOp::kWait, {key}));
  if (found != by_signature_.end()) {
    woken_.emplace_back(found->second, key);
    return;
  }
  TierFrame frame;
  frame.type = TierFrame::Type::kWakeBack;
  frame.keys = {key};
  Send(frame);
}

void TierCore::EndFlightIfAlone(uint64_t id) {
  if (!flights_.at(id).joiners.empty()) return;
  TakeFlight(id);
  TierFrame frame;
  frame.type = TierFrame::Type::kCancel;
  frame.id = id;
  Send(frame);
}

void TierCore::Cancel(uint64_t stream, uint64_t id) {
  auto of_stream = waiting_.find(stream);
  if (of_stream == waiting_.end()) return;
  auto found = of_stream->second.find(id);
  if (found == of_stream->second.end()) return;
  const Waiting waiting = found->second;
  of_stream->second.erase(found);
  if (of_stream->second.empty()) waiting_.erase(of_stream);
  EndSent(waiting);
}

void TierCore::Gone(uint64_t stream) {
  if (auto of_stream = waiting_.find(stream); of_stream != waiting_.end()) {
    gone_.push_back(std::move(of_stream->second));
    waiting_.erase(of_stream);
  }
  tiers_.erase(stream);
  unseen_.ForgetStream(stream);
  sharing_.DropStream(stream);
  DoWork();
}

// ---- Ends of waits, and answers for many callers

// Returns false if the wait was cancelled, or if its stream has gone.
bool TierCore::EndWaiting(const StoreCaller& caller, uint64_t place) {
  auto of_stream = waiting_.find(caller.stream);
  if (of_stream == waiting_.end()) return false;
  auto found = of_stream->second.find(caller.id);
  if (found == of_stream->second.end() || found->second.place != place) return false;
  of_stream->second.erase(found);
  if (of_stream->second.empty()) waiting_.erase(of_stream);
  --waiting_count_;
  return true;
}

// Ends the request above if this was its last waiter.
void TierCore::EndSent(const Waiting& waiting) {
  --waiting_count_;
  if (passed_through_.erase(waiting.sent) > 0) {
    TierFrame frame;
    frame.type = TierFrame::Type::kCancel;
    frame.id = waiting.sent;
    Send(frame);
    return;
  }
  auto flight = flights_.find(waiting.sent);
  if (flight != flights_.end() && flight->second.joiners.erase(waiting.place) > 0) EndFlightIfAlone(waiting.sent);
}

void TierCore::Work() {
  ++turn_;
  BeginVisits();
  DoWork();
}

void TierCore::WorkOn(int kind) {
  switch (kind) {
    case 0:
      while (!woken_.empty() && may_visit()) WakeOne();
      break;
    case 1:
      while (!landed_.empty() && may_visit()) AnswerJoiners();
      break;
    case 2:
      while (!added_.empty() && may_visit()) AnswerAdds();
      break;
    default:
      while (!gone_.empty() && may_visit()) ForgetGone();
  }
}

void TierCore::WakeOne() {
  const auto [id, key] = woken_.front();
  Visit(1);
  auto found = flights_.find(id);
  if (found == flights_.end() || found->second.op != StoreOp::kWait) {
    woken_.pop_front();
    return PassWakeOn(key);
  }
  Flight& flight = found->second;
  // A later caller may find the element still there. It must not wait behind the present waiters, for which one element
  // is not enough.
  auto newest = by_signature_.find(Signature(flight.op, flight.keys));
  if (newest != by_signature_.end() && newest->second == id) by_signature_.erase(newest);
  while (!flight.joiners.empty()) {
    if (!may_visit()) return;
    Visit(1);
    auto first = flight.joiners.begin();
    const uint64_t place = first->first;
    Joiner joiner = std::move(first->second);
    flight.joiners.erase(first);
    const StoreCaller caller = joiner.call.caller;
    if (!waiting_.contains(caller.stream)) continue;  // the waiter has gone, and the element is for another one
    StoreAnswer answer;
    if (caller.tier) {
      answer.wake_one = true;
      answer.values = {key};
      // The tier goes on waiting for its other clients; the next element goes to another waiter.
      waiting_[caller.stream][caller.id].place = next_place_;
      flight.joiners.emplace_hint(flight.joiners.end(), next_place_++, std::move(joiner));
      host_.answer(caller, std::move(answer));
    } else {
      EndWaiting(caller, place);
      host_.answer(caller, std::move(answer));
      EndFlightIfAlone(id);
    }
    woken_.pop_front();
    return;
  }
  EndFlightIfAlone(id);  // the element goes back to the store above
}

void TierCore::AnswerJoiners() {
  Landed& landed = landed_.front();
  auto& joiners = landed.flight.joiners;
  const size_t copied = BytesOf(landed.reply.values) / kVisitBytes;  // visits for the copying, for each joiner
  while (!joiners.empty() && may_visit()) {
    auto first = joiners.begin();
    const uint64_t place = first->first;
    Joiner joiner = std::move(first->second);
    joiners.erase(first);
    Visit(joiner.call.request.keys.size() + copied);
    if (landed.flight.op == StoreOp::kWait && !EndWaiting(joiner.call.caller, place)) continue;
    if (joiner.late) {
      Retry(std::move(joiner.call));
    } else {
      AnswerJoiner(joiner.call, landed.reply, landed.turn == turn_);
    }
  }
  if (joiners.empty()) landed_.pop_front();
}

void TierCore::AnswerAdds() {
  Added& added = added_.front();
  for (; added.next < added.addings.size() && may_visit(); ++added.next) {
    const Adding& adding = added.addings[added.next];
    added.value += static_cast<uint64_t>(adding.delta);
    StoreAnswer answer;
    answer.number = static_cast<int64_t>(added.value);
    answer.fault = added.fault;
    Visit(1);
    host_.answer(adding.caller, std::move(answer));
  }
  if (added.next == added.addings.size()) added_.pop_front();
}

void TierCore::ForgetGone() {
  WaitingById& waiting = gone_.front();
  while (!waiting.empty() && may_visit()) {
    const Waiting one = waiting.begin()->second;
    waiting.erase(waiting.begin());
    Visit(1);
    EndSent(one);
  }
  if (waiting.empty()) gone_.pop_front();
}

void TierCore::Forget(uint64_t stream, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) sharing_.Drop(key, stream);
}

}  // namespace taskd::store
