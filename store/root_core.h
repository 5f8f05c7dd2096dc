// Holds the keys of a job, and executes calls as PyTorch's TCPStore server does (core.h).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "store/core.h"
#include "store/sharing.h"

namespace taskd::store {

class RootCore : public StoreCore {
 public:
  // Larger values are not copied to tiers, which have to read them again each time.
  static constexpr size_t kMaxCopiedBytes = 64 * 1024;
  // A value that has changed more often than this is no longer copied.
  static constexpr int kMaxChangesOfCopied = 4;

  RootCore(StoreCoreHost host, Sharing* sharing) : host_(std::move(host)), sharing_(*sharing) {}

  Result Execute(StoreCall& call) override;
  void Cancel(uint64_t stream, uint64_t id) override;
  void Gone(uint64_t stream) override;
  void Work() override;
  bool has_work() const override { return !pushed_.empty() || !created_.empty() || !opened_.empty() || !gone_.empty(); }
  bool may_wait() const override { return gone_keys_ <= kMaxGoneKeys; }
  void Acknowledge(uint64_t stream, uint64_t batch) override { sharing_.Acknowledge(stream, batch); }
  void Forget(uint64_t stream, const std::vector<std::string>& keys) override;
  void WakeBack(const std::string& key) override;
  uint64_t Confirmed(uint64_t, uint64_t frames) override { return frames; }
  void ForgetTry(bool all) override;
  size_t AnswerBytes(const StoreRequest& request, size_t enough) const override;
  size_t bytes() const override { return bytes_; }
  size_t list_bytes() const override { return key_bytes_ + entries_.size() * kStringOverhead; }
  uint64_t keys() const override { return entries_.size(); }
  uint64_t waiting() const override { return waits_.size(); }

 private:
  struct Entry {
    std::string value;
    int changes = 0;      // changes of the value since the key was created
    bool counts = false;  // an ADD has made or changed it
    bool of_this_try = false;
  };
  struct Wait {
    StoreCaller caller;
    std::vector<std::string> keys;  // in the caller's order; a barrier has one
    size_t missing = 0;             // number of different keys that have not been created since the wait began
    int64_t world = 0;              // for a barrier: the world size
  };
  using WaitId = uint64_t;  // in order of arrival
  using WaitIds = absl::btree_set<WaitId>;
  using BarrierWaits = absl::btree_set<std::pair<int64_t, WaitId>>;  // by the number of clients that opens them
  static constexpr uint64_t kNoStream = 0;                           // stream of a cancelled wait
  struct WaitsOfStream {
    absl::btree_map<uint64_t, WaitId> by_id;
    size_t keys = 0;
  };
  // An opened barrier: its number of clients became `count` when wait `newest` came. Its waits from `next` on have not
  // been visited yet.
  struct Opened {
    std::string key;
    int64_t count;
    WaitId newest;
    BarrierWaits::value_type next;
  };

  bool MayRun(const StoreCall& call);
  void Write(StoreCall& call);
  int64_t Count(const StoreRequest& request) const;
  // Returns true if all keys exist for a WAIT or CHECK, which also finds queues with an element.
  bool Exist(const std::vector<std::string>& keys) const;
  bool Exists(const std::string& key) const { return entries_.contains(key) || queues_.contains(key); }
  void Put(const std::string& key, std::string value, bool of_this_try, bool counts);
  bool Erase(const std::string& key);
  void Append(const StoreCall& call);
  void ListKeys(const StoreCaller& caller);
  void Created(const std::string& key);
  WaitId AddWait(Wait wait);
  Wait TakeWait(WaitId id);
  bool EndWait(WaitId id);
  void Release(WaitId id);
  void WorkOn(int kind) override;
  void WakeOne();
  void ReleaseOfCreated();
  void ReleaseOfBarrier();
  void ForgetGone();
  void AnswerStates(const StoreCaller& caller, const std::vector<std::string>& keys, size_t max_value_bytes);
  bool MayCopy(const std::string& key) const;

  void Add(const StoreCall& call);
  void CompareSet(StoreCall& call);
  void Read(StoreCall& call);
  void StartWait(StoreCall& call);
  void Push(const std::string& key, std::string value);
  void Pop(const StoreCall& call);
  void Barrier(const StoreCall& call);

  StoreCoreHost host_;
  Sharing& sharing_;
  absl::flat_hash_map<std::string, Entry> entries_;
  absl::flat_hash_map<std::string, std::deque<std::string>> queues_;  // has no empty queues
  absl::btree_map<WaitId, Wait> waits_;
  absl::flat_hash_map<std::string, WaitIds> waiters_;        // by key
  absl::flat_hash_map<std::string, BarrierWaits> barriers_;  // by key
  absl::flat_hash_map<uint64_t, WaitsOfStream> waits_of_;    // by stream; only streams that are still here
  WaitId next_wait_ = 1;
  size_t bytes_ = 0;      // memory of keys, values and queues
  size_t key_bytes_ = 0;  // size of the keys of entries_
  // No wait begins while streams that have gone have left more keys of waits than this to forget. So a client that
  // connects again and again cannot be faster than that work.
  static constexpr size_t kMaxGoneKeys = 2 * kMaxKeys;
  // The work that is left. Ids of waits that have ended meanwhile are skipped; an id is not used again.
  std::deque<std::string> pushed_;  // queues whose new element wakes one waiter
  std::deque<WaitIds> created_;     // waiters of keys that were created
  std::deque<Opened> opened_;
  std::deque<WaitsOfStream> gone_;  // also has cancelled waits
  size_t gone_keys_ = 0;
};

}  // namespace taskd::store
