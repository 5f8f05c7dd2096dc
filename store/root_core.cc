#include "store/root_core.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

namespace taskd::store {
namespace {

constexpr size_t kNoLimit = SIZE_MAX;

// Parses like std::stoll: blanks before the number and anything after it are allowed.
std::optional<int64_t> ParseNumber(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t\n\v\f\r");
  if (begin == std::string::npos) return std::nullopt;
  if (text[begin] == '+') ++begin;
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

StoreAnswer Number(int64_t number) {
  StoreAnswer answer;
  answer.number = number;
  return answer;
}

StoreAnswer Fault() {
  StoreAnswer answer;
  answer.fault = true;
  return answer;
}

}  // namespace

StoreCore::Result RootCore::Execute(StoreCall& call) {
  if (!MayRun(call)) return Result::kBlocked;
  switch (call.request.op) {
    case StoreOp::kGet:
    case StoreOp::kMultiGet:
    case StoreOp::kCheck:
      Read(call);
      break;
    case StoreOp::kNumKeys:
    case StoreOp::kQueueLen:
      host_.answer(call.caller, Number(Count(call.request)));
      break;
    case StoreOp::kListKeys:
      ListKeys(call.caller);
      break;
    case StoreOp::kWait:
      StartWait(call);
      break;
    case StoreOp::kPing:
    case StoreOp::kCancelWait:  // Cancel() has ended the wait
      host_.answer(call.caller, Number(call.request.number));
      break;
    case StoreOp::kWatchKey:
      break;  // the connection handles it
    case StoreOp::kSet:
    case StoreOp::kMultiSet:
    case StoreOp::kAppend:
    case StoreOp::kCompareSet:
    case StoreOp::kAdd:
    case StoreOp::kDelete:
    case StoreOp::kQueuePush:
    case StoreOp::kQueuePop:
    case StoreOp::kBarrier:
      Write(call);
      break;
  }
  DoWork();  // only after the call: a waiter must get the state of its keys after the call
  return Result::kDone;
}

// Returns false if the keys are locked; then the stream is resumed afterwards.
bool RootCore::MayRun(const StoreCall& call) {
  auto resume = [this, stream = call.caller.stream] { host_.resume(stream); };
  if (sharing_.WhenUnlocked(call.request.keys, resume)) return false;
  return !IsWrite(call.request.op) ||
         sharing_.Revoke(call.request.keys, call.caller.tier ? call.caller.stream : 0, resume);
}

void RootCore::Write(StoreCall& call) {
  StoreRequest& request = call.request;
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kMultiSet:
      for (size_t i = 0; i < request.keys.size(); ++i) {
        Put(request.keys[i], std::move(request.values[i]), call.of_this_try, false);
      }
      break;
    case StoreOp::kAppend:
      Append(call);
      break;
    case StoreOp::kCompareSet:
      CompareSet(call);
      break;
    case StoreOp::kAdd:
      Add(call);
      break;
    case StoreOp::kDelete:
      host_.answer(call.caller, Number(Erase(request.keys[0])));
      break;
    case StoreOp::kQueuePush:
      Push(request.keys[0], std::move(request.values[0]));
      break;
    case StoreOp::kQueuePop:
      Pop(call);
      break;
    case StoreOp::kBarrier:
      Barrier(call);
      break;
    default:
      break;  // the other operations do not write
  }
}

int64_t RootCore::Count(const StoreRequest& request) const {
  if (request.op == StoreOp::kNumKeys) return static_cast<int64_t>(entries_.size());
  auto queue = queues_.find(request.keys[0]);
  return queue == queues_.end() ? 0 : static_cast<int64_t>(queue->second.size());
}

bool RootCore::Exist(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return Exists(key); });
}

void RootCore::Put(const std::string& key, std::string value, bool of_this_try, bool counts) {
  auto [found, created] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (created) {
    bytes_ += key.size() + kEntryOverhead;
    key_bytes_ += key.size();
  }
  bytes_ += value.size() - entry.value.size();
  entry.value = std::move(value);
  entry.of_this_try = of_this_try;
  entry.counts = entry.counts || counts;
  if (created) {
    Created(key);
  } else {
    ++entry.changes;
  }
}

bool RootCore::Erase(const std::string& key) {
  auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  bytes_ -= key.size() + found->second.value.size() + kEntryOverhead;
  key_bytes_ -= key.size();
  entries_.erase(found);
  return true;
}

// A value may not grow beyond the limit of a SET.
void RootCore::Append(const StoreCall& call) {
  const std::string& key = call.request.keys[0];
  const std::string& more = call.request.values[0];
  auto found = entries_.find(key);
  if (found == entries_.end()) return Put(key, more, call.of_this_try, false);
  std::string& value = found->second.value;
  if (value.size() + more.size() > kMaxValueBytes) return host_.answer(call.caller, Fault());
  bytes_ -= value.size();
  std::string longer = std::exchange(value, {});
  longer += more;
  Put(key, std::move(longer), call.of_this_try, false);
}

void RootCore::ListKeys(const StoreCaller& caller) {
  if (list_bytes() > kMaxListBytes) return host_.answer(caller, Fault());
  StoreAnswer answer;
  answer.values.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) answer.values.push_back(key);
  host_.answer(caller, std::move(answer));
}

size_t RootCore::AnswerBytes(const StoreRequest& request, size_t enough) const {
  size_t bytes = 0;
  switch (request.op) {
    case StoreOp::kGet:
    case StoreOp::kMultiGet:
    case StoreOp::kCompareSet:
      for (auto key = request.keys.begin(); key != request.keys.end() && bytes <= enough; ++key) {
        auto entry = entries_.find(*key);
        bytes += kStringOverhead + (entry == entries_.end() ? 0 : entry->second.value.size());
      }
      return bytes;
    case StoreOp::kQueuePop:
      for (const std::string& key : request.keys) {
        if (auto queue = queues_.find(key); queue != queues_.end()) bytes += queue->second.front().size();
      }
      return bytes;
    case StoreOp::kListKeys:
      return list_bytes();
    default:
      return 0;
  }
}

void RootCore::Created(const std::string& key) {
  auto waiters = waiters_.find(key);
  if (waiters == waiters_.end()) return;
  created_.push_back(std::move(waiters->second));
  waiters_.erase(waiters);
}

void RootCore::WakeBack(const std::string& key) {
  if (queues_.contains(key)) pushed_.push_back(key);
  DoWork();
}

// ---- Ends of waits

RootCore::WaitId RootCore::AddWait(Wait wait) {
  const WaitId id = next_wait_++;
  WaitsOfStream& of_stream = waits_of_[wait.caller.stream];
  of_stream.by_id[wait.caller.id] = id;
  of_stream.keys += wait.keys.size();
  waits_.emplace_hint(waits_.end(), id, std::move(wait));
  return id;
}

// Removes the wait from waits_ and waits_of_.
RootCore::Wait RootCore::TakeWait(WaitId id) {
  auto found = waits_.find(id);
  Wait wait = std::move(found->second);
  waits_.erase(found);
  auto of_stream = waits_of_.find(wait.caller.stream);
  if (of_stream == waits_of_.end()) return wait;  // the stream has gone
  of_stream->second.by_id.erase(wait.caller.id);
  of_stream->second.keys -= wait.keys.size();
  if (of_stream->second.by_id.empty()) waits_of_.erase(of_stream);
  return wait;
}

// Forgets the wait in all lists, as far as visits are left in this round. Returns false if there is more to do.
bool RootCore::EndWait(WaitId id) {
  Wait& wait = waits_.at(id);
  auto forget = [](auto& by_key, const std::string& key, const auto& listed) {
    auto of_key = by_key.find(key);
    if (of_key == by_key.end()) return;
    of_key->second.erase(listed);
    if (of_key->second.empty()) by_key.erase(of_key);
  };
  for (; !wait.keys.empty(); wait.keys.pop_back()) {
    if (!may_visit()) return false;
    Visit(1);
    if (wait.caller.op == StoreOp::kBarrier) {
      forget(barriers_, wait.keys.back(), std::pair(wait.world, id));
    } else {
      forget(waiters_, wait.keys.back(), id);
    }
  }
  waits_.erase(id);
  return true;
}

void RootCore::Release(WaitId id) {
  const bool is_here = waits_of_.contains(waits_.at(id).caller.stream);
  const Wait wait = TakeWait(id);
  if (!is_here) return;  // a stream that has gone would never give copies back
  if (wait.caller.tier && wait.caller.op == StoreOp::kWait) {
    AnswerStates(wait.caller, wait.keys, kMaxUnaskedBytes);
  } else {
    host_.answer(wait.caller, StoreAnswer());
  }
}

void RootCore::Work() {
  BeginVisits();
  DoWork();
}

void RootCore::WorkOn(int kind) {
  switch (kind) {
    case 0:
      while (!pushed_.empty() && may_visit()) WakeOne();
      break;
    case 1:
      while (!created_.empty() && may_visit()) ReleaseOfCreated();
      break;
    case 2:
      while (!opened_.empty() && may_visit()) ReleaseOfBarrier();
      break;
    default:
      while (!gone_.empty() && may_visit()) ForgetGone();
  }
}

// A push wakes the longest waiting client, as in PyTorch. A tier's wait stands for many clients, so it goes on behind
// the others.
void RootCore::WakeOne() {
  const std::string& key = pushed_.front();
  for (auto waiters = waiters_.find(key); waiters != waiters_.end(); waiters = waiters_.find(key)) {
    if (!may_visit()) return;
    const WaitId id = *waiters->second.begin();
    Wait& wait = waits_.at(id);
    Visit(wait.keys.size());
    waiters->second.erase(waiters->second.begin());
    if (waiters->second.empty()) waiters_.erase(waiters);
    if (!waits_of_.contains(wait.caller.stream)) continue;  // the wait has ended, and the element is for another one
    if (wait.caller.tier && wait.keys.size() == 1) {
      StoreAnswer answer;
      answer.wake_one = true;
      answer.values.push_back(key);
      const StoreCaller caller = wait.caller;
      waiters_[key].insert(AddWait(TakeWait(id)));
      host_.answer(caller, std::move(answer));
    } else if (--wait.missing == 0) {
      Release(id);
    }
    break;
  }
  pushed_.pop_front();
}

void RootCore::ReleaseOfCreated() {
  WaitIds& ids = created_.front();
  while (!ids.empty() && may_visit()) {
    const WaitId id = *ids.begin();
    ids.erase(ids.begin());
    auto wait = waits_.find(id);
    Visit(1);
    if (wait == waits_.end() || --wait->second.missing > 0) continue;
    Visit(wait->second.keys.size());
    Release(id);
  }
  if (ids.empty()) created_.pop_front();
}

void RootCore::ReleaseOfBarrier() {
  Opened& opened = opened_.front();
  auto barrier = barriers_.find(opened.key);
  if (barrier != barriers_.end()) {
    auto next = barrier->second.lower_bound(opened.next);
    while (next != barrier->second.end() && next->first <= opened.count) {
      opened.next = *next;
      if (!may_visit()) return;
      Visit(1);
      if (next->second > opened.newest) {  // this wait came after the number had been set back
        ++next;
        continue;
      }
      Release(next->second);
      next = barrier->second.erase(next);
    }
    if (barrier->second.empty()) barriers_.erase(barrier);
  }
  opened_.pop_front();
}

void RootCore::ForgetGone() {
  WaitsOfStream& of_stream = gone_.front();
  while (!of_stream.by_id.empty() && may_visit()) {
    const WaitId id = of_stream.by_id.begin()->second;
    Visit(1);
    if (waits_.contains(id) && !EndWait(id)) return;  // the wait may have been released meanwhile
    of_stream.by_id.erase(of_stream.by_id.begin());
  }
  if (!of_stream.by_id.empty()) return;
  gone_keys_ -= of_stream.keys;
  gone_.pop_front();
}

bool RootCore::MayCopy(const std::string& key) const {
  if (queues_.contains(key)) return false;
  auto entry = entries_.find(key);
  return entry == entries_.end() || (!entry->second.counts && entry->second.changes <= kMaxChangesOfCopied &&
                                     entry->second.value.size() <= kMaxCopiedBytes);
}

void RootCore::AnswerStates(const StoreCaller& caller, const std::vector<std::string>& keys, size_t max_value_bytes) {
  StoreAnswer answer;
  size_t bytes = 0;
  for (const std::string& key : keys) {
    const bool full = bytes >= kMaxAnswerBytes;
    if (full && caller.op == StoreOp::kMultiGet) break;
    uint8_t state = 0;
    auto entry = entries_.find(key);
    if (entry != entries_.end() || queues_.contains(key)) state |= kPresent;
    if (MayCopy(key) && !sharing_.IsLocked(key) && sharing_.MayGrant(key)) {
      state |= kCopy;
      sharing_.Grant(key, caller.stream);
    }
    if (entry != entries_.end() && entry->second.value.size() <= max_value_bytes && !full) {
      state |= kHasValue;
      bytes += entry->second.value.size() + kStringOverhead;
      answer.values.push_back(entry->second.value);
    }
    answer.states.push_back(state);
  }
  host_.answer(caller, std::move(answer));
}

void RootCore::Read(StoreCall& call) {
  const StoreCaller& caller = call.caller;
  const StoreRequest& request = call.request;
  if (caller.tier) {
    AnswerStates(caller, request.keys, request.op == StoreOp::kCheck ? kMaxUnaskedBytes : kNoLimit);
    return;
  }
  if (request.op == StoreOp::kCheck) {
    host_.answer(caller, Number(Exist(request.keys)));
    return;
  }
  StoreAnswer answer;
  size_t bytes = 0;
  for (auto at = call.request.keys.begin(); at != call.request.keys.end(); ++at) {
    if (bytes >= kMaxAnswerBytes) {
      answer.rest.assign(std::make_move_iterator(at), std::make_move_iterator(call.request.keys.end()));
      break;
    }
    auto entry = entries_.find(*at);
    if (entry == entries_.end() && !call.of_this_try) {  // servers of 1.x closed the connection
      host_.answer(caller, Fault());
      return;
    }
    answer.values.push_back(entry == entries_.end() ? std::string() : entry->second.value);
    bytes += answer.values.back().size() + kStringOverhead;
  }
  host_.answer(caller, std::move(answer));
}

void RootCore::Add(const StoreCall& call) {
  const std::string& key = call.request.keys[0];
  auto found = entries_.find(key);
  std::optional<int64_t> before = found == entries_.end() ? 0 : ParseNumber(found->second.value);
  if (!before) {
    host_.answer(call.caller, Fault());
    return;
  }
  const auto after = static_cast<int64_t>(static_cast<uint64_t>(*before) + static_cast<uint64_t>(call.request.number));
  Put(key, std::to_string(after), call.of_this_try, true);
  host_.answer(call.caller, Number(after));
}

void RootCore::CompareSet(StoreCall& call) {
  const std::string& key = call.request.keys[0];
  std::string& expected = call.request.values[0];
  std::string& desired = call.request.values[1];
  StoreAnswer answer;
  auto found = entries_.find(key);
  if (found == entries_.end() && !expected.empty()) {
    answer.values.push_back(std::move(expected));
  } else if (found != entries_.end() && found->second.value != expected) {
    answer.values.push_back(found->second.value);
  } else {
    answer.values.push_back(desired);
    Put(key, std::move(desired), call.of_this_try, false);
  }
  host_.answer(call.caller, std::move(answer));
}

void RootCore::Push(const std::string& key, std::string value) {
  bytes_ += key.size() + value.size() + kEntryOverhead;
  auto [queue, created] = queues_.try_emplace(key);
  if (created) bytes_ += kQueueOverhead;
  queue->second.push_back(std::move(value));
  pushed_.push_back(key);
}

void RootCore::Pop(const StoreCall& call) {
  StoreAnswer answer;
  auto queue = queues_.find(call.request.keys[0]);
  if (queue != queues_.end()) {
    answer.number = static_cast<int64_t>(queue->second.size());
    bytes_ -= queue->first.size() + queue->second.front().size() + kEntryOverhead;
    answer.values.push_back(std::move(queue->second.front()));
    queue->second.pop_front();
    if (queue->second.empty()) {
      bytes_ -= kQueueOverhead;
      queues_.erase(queue);
    }
  }
  host_.answer(call.caller, std::move(answer));
}

void RootCore::StartWait(StoreCall& call) {
  const StoreCaller& caller = call.caller;
  std::vector<std::string>& keys = call.request.keys;
  if (Exist(keys)) {
    if (caller.tier) {
      AnswerStates(caller, keys, kMaxUnaskedBytes);
    } else {
      host_.answer(caller, StoreAnswer());
    }
    return;
  }
  const WaitId id = AddWait({.caller = caller, .keys = std::move(keys), .missing = 0, .world = 0});
  Wait& wait = waits_.at(id);
  for (const std::string& key : wait.keys) {
    if (!Exists(key) && waiters_[key].insert(id).second) ++wait.missing;
  }
}

void RootCore::Barrier(const StoreCall& call) {
  const std::string& key = call.request.keys[0];
  auto found = entries_.find(key);
  std::optional<int64_t> before = found == entries_.end() ? 0 : ParseNumber(found->second.value);
  if (!before) {
    host_.answer(call.caller, Fault());
    return;
  }
  const auto count = static_cast<int64_t>(static_cast<uint64_t>(*before) + 1);
  Put(key, std::to_string(count), call.of_this_try, true);

  const int64_t world = call.request.number;
  const WaitId id = AddWait({.caller = call.caller, .keys = {key}, .missing = 0, .world = world});
  BarrierWaits& waiting = barriers_[key];
  waiting.emplace(world, id);
  if (waiting.begin()->first <= count) opened_.push_back({key, count, id, *waiting.begin()});
}

void RootCore::Cancel(uint64_t stream, uint64_t id) {
  auto of_stream = waits_of_.find(stream);
  if (of_stream == waits_of_.end()) return;
  auto found = of_stream->second.by_id.find(id);
  if (found == of_stream->second.by_id.end()) return;
  Wait& wait = waits_.at(found->second);
  const size_t keys = wait.keys.size();
  WaitsOfStream ended;
  ended.by_id[id] = found->second;
  ended.keys = keys;
  gone_.push_back(std::move(ended));
  gone_keys_ += keys;
  of_stream->second.by_id.erase(found);
  of_stream->second.keys -= keys;
  if (of_stream->second.by_id.empty()) waits_of_.erase(of_stream);
  wait.caller.stream = kNoStream;
  DoWork();
}

void RootCore::Gone(uint64_t stream) {
  if (auto of_stream = waits_of_.find(stream); of_stream != waits_of_.end()) {
    gone_keys_ += of_stream->second.keys;
    gone_.push_back(std::move(of_stream->second));
    waits_of_.erase(of_stream);
    DoWork();
  }
  sharing_.DropStream(stream);
}

void RootCore::Forget(uint64_t stream, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) sharing_.Drop(key, stream);
}

void RootCore::ForgetTry(bool all) {
  std::vector<std::string> keys;
  std::vector<std::string> copied;
  for (const auto& [key, entry] : entries_) {
    if (!all && !entry.of_this_try) continue;
    // The copies of a locked key are on their way back. The key must not outlive its try because a tier is slow.
    (sharing_.HasCopies(key) && !sharing_.IsLocked(key) ? copied : keys).push_back(key);
  }
  for (const auto& [key, elements] : queues_) {
    bytes_ -= kQueueOverhead;
    for (const std::string& element : elements) bytes_ -= key.size() + element.size() + kEntryOverhead;
  }
  queues_.clear();  // only clients of 2.2 and later have queues
  // No rank runs between two tries, so no copy can be read before the acknowledgements are here.
  auto erase = [this](const std::vector<std::string>& gone) {
    for (const std::string& key : gone) Erase(key);
  };
  erase(keys);
  if (sharing_.Revoke(copied, 0, [erase, copied] { erase(copied); })) erase(copied);
}

}  // namespace taskd::store
