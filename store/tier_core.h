// Passes the calls of a node's clients on to the keys, and combines them before it sends them up (core.h).
//
// This is how each operation is handled:
// - Reads (GET, MULTI_GET, CHECK) are answered from copies, or else by one request for all equal ones. A client that
//   asks after that request was sent shares its answer only if the answer brought copies. Without copies the answer may
//   be older than the question.
// - WAIT: one wait above stands for all equal ones. Its answer brings copies, so that the GET that follows stays here.
// - ADD: one is under way for each key. Those that come meanwhile are sent together as their sum, and each gets its own
//   number.
// - Writes without a reply are sent at once, in order, on one connection.
// - All other operations are passed through.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "store/core.h"
#include "store/sharing.h"
#include "store/tier_frame.h"
#include "store/unseen_writes.h"

namespace taskd::store {

class TierCore : public StoreCore {
 public:
  static constexpr size_t kMaxCopies = 256 * 1024;
  static constexpr size_t kMaxCopyBytes = 64 * 1024 * 1024;

  // `send` sends to the store above, in order.
  TierCore(StoreCoreHost host, Sharing* sharing, std::function<void(const TierFrame&)> send)
      : host_(std::move(host)), sharing_(*sharing), send_(std::move(send)) {}

  Result Execute(StoreCall& call) override;
  void Cancel(uint64_t stream, uint64_t id) override;
  void Gone(uint64_t stream) override;
  void Work() override;
  bool has_work() const override { return !woken_.empty() || !landed_.empty() || !added_.empty() || !gone_.empty(); }
  void Acknowledge(uint64_t stream, uint64_t batch) override { sharing_.Acknowledge(stream, batch); }
  void Forget(uint64_t stream, const std::vector<std::string>& keys) override;
  void WakeBack(const std::string& key) override;
  uint64_t Confirmed(uint64_t stream, uint64_t frames) override { return unseen_.Confirmed(stream, frames); }
  void ForgetTry(bool) override {}  // only the root has the keys
  size_t AnswerBytes(const StoreRequest& request, size_t enough) const override;
  size_t bytes() const override { return copy_bytes_; }
  size_t list_bytes() const override { return 0; }
  uint64_t keys() const override { return copies_.size(); }
  uint64_t waiting() const override { return waiting_count_; }

  // Handles a frame from the store above. Ignores answers to calls that are over.
  void Received(TierFrame frame);
  // Passes requests to `send` that were held back for others to join. To be called before the frames of `send` are
  // written.
  void BeforeFlush();
  // Notes that the frames have been written: a client that asks from now on may ask after they are answered.
  void Flushed();

 private:
  struct Copy {
    bool present = false;
    bool has_value = false;
    std::string value;
  };
  struct Joiner {
    StoreCall call;
    bool late = false;  // it asked after the request had been sent
  };
  // A read or a wait that was sent up, and all callers that want its answer.
  struct Flight {
    StoreOp op;             // kMultiGet, kCheck, kWait
    uint64_t sequence = 0;  // number of its frame (UnseenWrites)
    bool flushed = false;
    std::vector<std::string> keys;
    absl::btree_map<uint64_t, Joiner> joiners;  // by place, which is the order of arrival
  };
  // A flight with its reply, and the joiners that have not been answered yet.
  struct Landed {
    Flight flight;
    TierFrame reply;
    uint64_t turn;  // when the reply came
  };
  // Identifies a kWait or kBarrier of a stream that was sent up.
  struct Waiting {
    uint64_t sent;   // id of the request that was sent for it
    uint64_t place;  // place of a kWait among the flight's joiners
  };
  using WaitingById = absl::btree_map<uint64_t, Waiting>;
  struct Adding {
    StoreCaller caller;
    int64_t delta;
  };
  struct Counter {
    std::vector<Adding> sent;
    std::vector<Adding> next;
    bool of_this_try = false;
  };
  // ADDs that were sent together; those from `next` on have not been answered.
  struct Added {
    std::vector<Adding> addings;
    size_t next = 0;
    uint64_t value;  // value of the counter before addings[next]
    bool fault;
  };

  bool AnswerFromCopies(const StoreCall& call);
  bool MayJoin(const StoreCall& call, const Flight& flight) const;
  void Join(StoreCall call);
  void Retry(StoreCall call);
  void SendAdds(const std::string& key);
  Result PassThrough(StoreCall& call);
  void Send(const TierFrame& frame);
  void AddToCounter(const StoreCall& call);
  Result AnswerPing(StoreCall& call);
  void Written(const std::vector<std::string>& keys);

  void TakeCopies(const TierFrame& reply, const std::vector<std::string>& keys);
  void DropCopy(const std::string& key);
  void DropUnsharedCopies();
  void Replied(TierFrame frame);
  void PassedThroughReplied(TierFrame frame);
  void AddReplied(const TierFrame& reply);
  void FlightReplied(TierFrame reply);
  void SilentWriteFailed(uint64_t id);
  void AnswerJoiner(const StoreCall& call, const TierFrame& reply, bool may_copy);
  bool EndWaiting(const StoreCaller& caller, uint64_t place);
  void EndSent(const Waiting& waiting);
  void WorkOn(int kind) override;
  void WakeOne();
  void PassWakeOn(const std::string& key);
  void AnswerJoiners();
  void AnswerAdds();
  void ForgetGone();
  void Revoke(uint64_t batch, const std::vector<std::string>& keys);
  void EndFlightIfAlone(uint64_t id);
  Flight TakeFlight(uint64_t id);

  StoreCoreHost host_;
  Sharing& sharing_;
  std::function<void(const TierFrame&)> send_;

  absl::flat_hash_set<uint64_t> tiers_;  // streams of tiers below that have made a call and are still here
  absl::flat_hash_map<std::string, Copy> copies_;
  size_t copy_bytes_ = 0;
  UnseenWrites unseen_;
  bool probing_ = false;

  uint64_t next_id_ = 1;
  absl::flat_hash_map<uint64_t, Flight> flights_;
  absl::flat_hash_map<std::string, uint64_t> by_signature_;  // the newest flight of each
  std::vector<uint64_t> unflushed_;
  absl::flat_hash_map<std::string, Counter> counters_;
  std::vector<std::string> unsent_counters_;
  absl::flat_hash_map<uint64_t, std::string> adds_;            // id of the sent ADD -> key
  absl::flat_hash_map<uint64_t, StoreCaller> passed_through_;  // id of the sent request -> caller
  absl::flat_hash_map<uint64_t, WaitingById> waiting_;         // by stream; only streams that are still here
  size_t waiting_count_ = 0;
  uint64_t next_place_ = 1;
  uint64_t turn_ = 0;  // counts frames from above and rounds

  // The following lists have the work that is left.
  std::deque<std::pair<uint64_t, std::string>> woken_;  // a flight with a kWait, and the queue with a new element
  std::deque<Landed> landed_;
  std::deque<Added> added_;
  std::deque<WaitingById> gone_;
};

}  // namespace taskd::store
