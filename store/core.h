// What is behind a store's connections: the keys themselves (RootCore) or the way to them (TierCore). No I/O.
//
// Design:
// 1. A *stream* is a connection that asks: a client, or a tier that asks for many. Calls of one stream are executed in
//    their order; a call that cannot be executed yet blocks its stream (Result::kBlocked) until `resume`.
// 2. A tier may keep a *copy* of a key's state (absent, or present and its value) once it has read it. Whoever gave the
//    copy remembers that (Sharing). Before a key changes all copies are revoked and every holder has acknowledged;
//    until then the key is locked: calls for it block. So a copy is always what the root has, and answers from copies
//    are as good as the root's.
// 3. What changes all the time (counters, values written again and again) is never given as a copy.
// 4. An answer holds about kMaxAnswerBytes of values at most: it covers the first keys of a kMultiGet, and whoever
//    asked asks again for the others when that has been read. So no reader makes a store hold more than that for it,
//    whatever it asks. Values of a small answer are of one moment; those of one in parts each of the moment of their
//    part.
// 5. One event may end hundreds of thousands of waits: a SET that all of them wait for, or a connection that goes. A
//    core does kMaxVisits of such work in a round of its loop and keeps the rest for the next ones (Work()). The kinds
//    of such work take turns. A wait is over when its event happened; only the answer comes later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/request.h"

namespace taskd::store {

// Who asked. Several calls of a tier are under way at once, identified by `id`: no id comes again while its call is
// under way, which the connections see to (tier_service.h).
struct StoreCaller {
  uint64_t stream = 0;
  uint64_t id = 0;
  StoreOp op = StoreOp::kPing;
  bool tier = false;
};

struct StoreCall {
  StoreCaller caller;
  StoreRequest request;
  bool of_this_try = false;  // a write of a client that expects a new store for every try of the job
  uint64_t frame = 0;        // a tier's: which of its frames this is
};

// Of one key, in an answer to a tier.
enum KeyState : uint8_t { kPresent = 1, kCopy = 2, kHasValue = 4 };

// The largest value that a tier is given unasked, with the news that its key exists: enough for the ids and addresses
// of collectives.
inline constexpr size_t kMaxUnaskedBytes = 4 * 1024;

// Of the values in an answer; the last one may go beyond.
inline constexpr size_t kMaxAnswerBytes = 4 * 1024 * 1024;
// Of all keys in the answer to a kListKeys, which cannot come in parts: beyond it there is none.
inline constexpr size_t kMaxListBytes = 64 * 1024 * 1024;

// What a key, an element or a call costs besides its bytes, about.
inline constexpr size_t kEntryOverhead = 128;
inline constexpr size_t kStringOverhead = 48;

// A queue costs besides its elements: std::deque's first block and the map's entry.
inline constexpr size_t kQueueOverhead = 1024;

inline size_t BytesOf(const std::vector<std::string>& strings) {
  size_t bytes = 0;
  for (const std::string& text : strings) bytes += text.size() + kStringOverhead;
  return bytes;
}

// The same of the keys of a call that is under way: a root knows each of them as the call's and by who waits for it, a
// tier as the call's and the flight's and in a signature.
inline size_t UnderWayBytesOf(const std::vector<std::string>& keys) {
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += 3 * (key.size() + kStringOverhead);
  return bytes;
}

struct StoreAnswer {
  int64_t number = 0;
  std::vector<std::string> values;
  std::vector<uint8_t> states;    // to tiers, for kMultiGet, kCheck and kWait: one of each key; values of those with
                                  // kHasValue. For kMultiGet perhaps of the first keys only.
  std::vector<std::string> rest;  // to clients, for kMultiGet: the keys that have to be asked for again
  bool wake_one = false;  // kWait of a tier: the queue values[0] got an element; the wait goes on for its other waiters
  bool fault = false;     // the client's connection is to be closed, as PyTorch's server would
};

struct StoreCoreHost {
  std::function<void(const StoreCaller&, StoreAnswer)> answer;
  std::function<void(uint64_t stream)> resume;  // execute the blocked call again
};

class StoreCore {
 public:
  enum class Result { kDone, kBlocked };

  virtual ~StoreCore() = default;

  // kDone: it was taken; its answer, if it has one, comes through `answer`, now or later. `call` may be moved from.
  // kBlocked: nothing happened but what must come first; `resume` will ask for it again.
  virtual Result Execute(StoreCall& call) = 0;
  // Ends the caller's kWait or kBarrier, which gets no answer then. Unknown ones: nothing happens.
  virtual void Cancel(uint64_t stream, uint64_t id) = 0;
  virtual void Gone(uint64_t stream) = 0;

  // Begins a round and does what earlier rounds have left, up to kMaxVisits.
  virtual void Work() = 0;
  // There is work for the next round. Any call may leave some.
  virtual bool has_work() const = 0;
  // A kWait or kBarrier may begin. False: too much is to be forgotten first, and has_work() is true.
  virtual bool may_wait() const { return true; }

  // Of tiers below.
  virtual void Acknowledge(uint64_t stream, uint64_t batch) = 0;
  virtual void Forget(uint64_t stream, const std::vector<std::string>& keys) = 0;  // it keeps no copies of these
  virtual void WakeBack(const std::string& key) = 0;                               // a wake_one found no waiter

  // Of the first `frames` frames of a tier, how many the root is known to have executed with all before them.
  virtual uint64_t Confirmed(uint64_t stream, uint64_t frames) = 0;

  virtual void ForgetTry(bool all) = 0;
  // Of the values in the answer, as far as that is known before; not counted on beyond `enough`.
  virtual size_t AnswerBytes(const StoreRequest& request, size_t enough) const = 0;
  virtual size_t bytes() const = 0;       // of memory, about, without what is kept of calls that wait
  virtual size_t list_bytes() const = 0;  // of the answer to a kListKeys, where that is known
  virtual uint64_t keys() const = 0;
  virtual uint64_t waiting() const = 0;

  // Keys and waits that a core looks at in a round because waits end: about 10 ms of CPU.
  static constexpr size_t kMaxVisits = 16 * 1024;
  // Copying so many bytes of an answer costs about as much as a visit.
  static constexpr size_t kVisitBytes = 1024;

 protected:
  static constexpr int kWorkKinds = 4;

  // Works on what is left of this kind, if anything, while may_visit().
  virtual void WorkOn(int kind) = 0;
  // Gives each kind its turn until there is no work or the round has no visits left. The next round goes on with the
  // kind after that: a single step may use up a whole round, and other kinds must not wait for all such steps.
  void DoWork() {
    for (; visits_left_ > 0 && has_work(); next_kind_ = (next_kind_ + 1) % kWorkKinds) {
      turn_left_ = kTurnVisits;
      WorkOn(next_kind_);
    }
  }
  // Keys of a wait that is answered are visited together: they may be more than are left.
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

// It may need memory for longer than until its answer was read.
inline bool MayGrow(StoreOp op) { return IsWrite(op) && op != StoreOp::kDelete && op != StoreOp::kQueuePop; }

inline bool HasReply(StoreOp op) {
  return op != StoreOp::kSet && op != StoreOp::kAppend && op != StoreOp::kMultiSet && op != StoreOp::kQueuePush;
}

}  // namespace taskd::store
