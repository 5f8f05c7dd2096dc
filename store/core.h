// The interface between a store's connections and its keys: the keys themselves (RootCore), or a tier that passes
// requests on to them (TierCore). A core does no I/O.
//
// Design:
// 1. A *stream* is a connection that makes calls: a client, or a tier that makes calls for many clients. Calls of one
//    stream are executed in their order. A call that cannot be executed yet blocks its stream (Result::kBlocked) until
//    `resume`.
// 2. A tier may keep a *copy* of a key's state once it has read it: absent, or present and its value. The store that
//    granted the copy remembers it (Sharing). Before a key changes, all copies are revoked and every holder has to
//    acknowledge. Until then the key is locked: calls for it block. So a copy always equals the root's state, and
//    answers from copies are as good as the root's.
// 3. Keys that change all the time are never copied: counters, and values that are written again and again.
// 4. An answer holds at most about kMaxAnswerBytes of values. The answer to a kMultiGet covers the first keys only, and
//    the other keys are asked for again when that answer has been read. So a reader cannot make a store hold more than
//    one such answer for it. The values of a small answer are of one moment; those of an answer in parts are of the
//    moment of their part.
// 5. One event may end hundreds of thousands of waits: a SET that all of them wait for, or the end of a connection. A
//    core does kMaxVisits of such work in a round of its loop and keeps the rest for later rounds (Work()). The kinds
//    of such work take turns. A wait is over when its event happens, even if the answer comes later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/request.h"

namespace taskd::store {

// Identifies the caller of a call. A tier may have several calls under way at once, each with its own `id`. An id is
// not used again while its call is under way; tier_service.h checks that.
struct StoreCaller {
  uint64_t stream = 0;
  uint64_t id = 0;
  StoreOp op = StoreOp::kPing;
  bool tier = false;
};

struct StoreCall {
  StoreCaller caller;
  StoreRequest request;
  bool of_this_try = false;  // a write of a client that expects a new store for each try of the job
  uint64_t frame = 0;        // number of the tier's frame
};

// These are the states of one key in an answer to a tier.
enum KeyState : uint8_t { kPresent = 1, kCopy = 2, kHasValue = 4 };

// The largest value that is sent to a tier unasked, with the news that its key exists. It is enough for the ids and
// addresses of collectives.
inline constexpr size_t kMaxUnaskedBytes = 4 * 1024;

// The limit of the values in an answer; the last value may exceed it.
inline constexpr size_t kMaxAnswerBytes = 4 * 1024 * 1024;
// The limit of all keys in the answer to a kListKeys. That answer cannot come in parts: a longer list is refused.
inline constexpr size_t kMaxListBytes = 64 * 1024 * 1024;

// The approximate memory of a key, an element or a call besides its bytes.
inline constexpr size_t kEntryOverhead = 128;
inline constexpr size_t kStringOverhead = 48;

// The memory of a queue besides its elements: std::deque's first block and the map's entry.
inline constexpr size_t kQueueOverhead = 1024;

inline size_t BytesOf(const std::vector<std::string>& strings) {
  size_t bytes = 0;
  for (const std::string& text : strings) bytes += text.size() + kStringOverhead;
  return bytes;
}

// Returns the memory of the keys of a call that is under way. A root has each key in the call and in the lists of
// waiters. A tier has it in the call, in the flight and in a signature.
inline size_t UnderWayBytesOf(const std::vector<std::string>& keys) {
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += 3 * (key.size() + kStringOverhead);
  return bytes;
}

struct StoreAnswer {
  int64_t number = 0;
  std::vector<std::string> values;
  std::vector<uint8_t> states;    // to tiers, for kMultiGet, kCheck and kWait: the state of each key; `values` has
                                  // those with kHasValue. A kMultiGet may cover the first keys only.
  std::vector<std::string> rest;  // to clients, for kMultiGet: the keys that have to be asked for again
  bool wake_one = false;  // kWait of a tier: queue values[0] got an element; the wait goes on for the other waiters
  bool fault = false;     // the client's connection has to be closed, as PyTorch's server would
};

struct StoreCoreHost {
  std::function<void(const StoreCaller&, StoreAnswer)> answer;
  std::function<void(uint64_t stream)> resume;  // requests that the blocked call be executed again
};

class StoreCore {
 public:
  enum class Result { kDone, kBlocked };

  virtual ~StoreCore() = default;

  // kDone: the call was taken. Its answer, if it has one, comes through `answer`, now or later. `call` may be moved
  // from. kBlocked: the call was not executed, but its preconditions are being met; `resume` will ask for it again.
  virtual Result Execute(StoreCall& call) = 0;
  // Ends the caller's kWait or kBarrier, which then gets no answer. Ignores unknown ones.
  virtual void Cancel(uint64_t stream, uint64_t id) = 0;
  virtual void Gone(uint64_t stream) = 0;

  // Begins a round and does up to kMaxVisits of the work that earlier rounds have left.
  virtual void Work() = 0;
  // Returns true if there is work for the next round. Any call may leave work.
  virtual bool has_work() const = 0;
  // Returns true if a kWait or kBarrier may begin. Otherwise too many ended waits have to be forgotten first, and
  // has_work() is true.
  virtual bool may_wait() const { return true; }

  // The following calls are for tiers below.
  virtual void Acknowledge(uint64_t stream, uint64_t batch) = 0;
  virtual void Forget(uint64_t stream, const std::vector<std::string>& keys) = 0;  // its copies are dropped
  virtual void WakeBack(const std::string& key) = 0;                               // a wake_one found no waiter

  // Returns how many of a tier's first `frames` frames the root has executed for certain, with all frames before them.
  virtual uint64_t Confirmed(uint64_t stream, uint64_t frames) = 0;

  virtual void ForgetTry(bool all) = 0;
  // Returns the size of the values in the answer, as far as it is known beforehand. Counting stops beyond `enough`.
  virtual size_t AnswerBytes(const StoreRequest& request, size_t enough) const = 0;
  virtual size_t bytes() const = 0;       // approximate memory, without that of waiting calls
  virtual size_t list_bytes() const = 0;  // size of the answer to a kListKeys; 0 if it is unknown here
  virtual uint64_t keys() const = 0;
  virtual uint64_t waiting() const = 0;

  // The number of keys and waits that a core visits in a round because waits end: about 10 ms of CPU.
  static constexpr size_t kMaxVisits = 16 * 1024;
  // Copying this many bytes of an answer costs about as much as a visit.
  static constexpr size_t kVisitBytes = 1024;

 protected:
  static constexpr int kWorkKinds = 4;

  // Works on the work of this kind while may_visit().
  virtual void WorkOn(int kind) = 0;
  // Gives each kind its turn until the work is done or the visits of the round are used up. The next round continues
  // with the following kind. A single step may use up a whole round, and other kinds must not wait for all such steps.
  void DoWork() {
    for (; visits_left_ > 0 && has_work(); next_kind_ = (next_kind_ + 1) % kWorkKinds) {
      turn_left_ = kTurnVisits;
      WorkOn(next_kind_);
    }
  }
  // The keys of an answered wait are visited together, which may exceed the visits that are left.
  void Visit(size_t visits) {
    visits_left_ -= std::min(visits_left_, visits);
    turn_left_ -= std::min(turn_left_, visits);
  }
  bool may_visit() const { return visits_left_ > 0 && turn_left_ > 0; }
  void BeginVisits() { visits_left_ = kMaxVisits; }

 private:
  static constexpr size_t kTurnVisits = 1024;

  size_t visits_left_ = kMaxVisits;
  size_t turn_left_ = 0;
  int next_kind_ = 0;
};

inline bool IsWrite(StoreOp op) {
  switch (op) {
    case StoreOp::kSet:
    case StoreOp::kCompareSet:
    case StoreOp::kAdd:
    case StoreOp::kDelete:
    case StoreOp::kAppend:
    case StoreOp::kMultiSet:
    case StoreOp::kQueuePush:
    case StoreOp::kQueuePop:
    case StoreOp::kBarrier:
      return true;
    default:
      return false;
  }
}

// Returns true if the operation may take memory beyond the time until its answer is read.
inline bool MayGrow(StoreOp op) { return IsWrite(op) && op != StoreOp::kDelete && op != StoreOp::kQueuePop; }

inline bool HasReply(StoreOp op) {
  return op != StoreOp::kSet && op != StoreOp::kAppend && op != StoreOp::kMultiSet && op != StoreOp::kQueuePush;
}

}  // namespace taskd::store
