// The keys of a job: what PyTorch's TCPStore server does with them (core.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "store/core.h"
#include "store/sharing.h"

namespace taskd::store {

class RootCore : public StoreCore {
 public:
  // Larger values are read again each time instead of being copied to tiers.
  static constexpr size_t kMaxCopiedBytes = 64 * 1024;
  // A value that was changed more often than this is not given as a copy any more.
  static constexpr int kMaxChangesOfCopied = 4;

  RootCore(StoreCoreHost host, Sharing* sharing) : host_(std::move(host)), sharing_(*sharing) {}

  Result Execute(StoreCall& call) override;
  void Cancel(uint64_t stream, uint64_t id) override;
  void Gone(uint64_t stream) override;
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
    int changes = 0;      // of the value since the key was created
    bool counts = false;  // it was made or changed by an ADD
    bool of_this_try = false;
  };
  struct Wait {
    StoreCaller caller;
    std::vector<std::string> keys;     // as the caller named them; a barrier's: its one
    std::vector<std::string> awaited;  // of these, each once, those that were missing when the wait began
    size_t missing = 0;                // of these, those that have not been created since
    int64_t world = 0;                 // a barrier's
  };
  using WaitId = uint64_t;  // in order of arrival

  bool MayRun(const StoreCall& call);
  void Write(StoreCall& call);
  int64_t Count(const StoreRequest& request) const;
  // Whether all keys exist, as a WAIT or CHECK sees it: a queue with an element in it does.
  bool Exist(const std::vector<std::string>& keys) const;
  bool Exists(const std::string& key) const { return entries_.contains(key) || queues_.contains(key); }
  void Put(const std::string& key, std::string value, bool of_this_try, bool counts);
  bool Erase(const std::string& key);
  void Append(const StoreCall& call);
  void ListKeys(const StoreCaller& caller);
  void Created(const std::string& key);
  void WakeOne(const std::string& key);
  absl::flat_hash_map<WaitId, Wait>::iterator EndWait(WaitId id);
  void Release(WaitId id);
  void ReleaseDue();
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
  absl::flat_hash_map<std::string, std::deque<std::string>> queues_;  // never empty ones
  absl::flat_hash_map<WaitId, Wait> waits_;
  absl::flat_hash_map<std::string, std::vector<WaitId>> waiters_;       // by key, the oldest first
  absl::flat_hash_map<std::string, std::vector<WaitId>> barriers_;      // the same
  absl::flat_hash_map<uint64_t, std::map<uint64_t, WaitId>> waits_of_;  // stream -> id -> wait
  WaitId next_wait_ = 1;
  size_t bytes_ = 0;         // of keys, values and queues
  size_t key_bytes_ = 0;     // of entries_
  std::vector<WaitId> due_;  // waits that the call under way has satisfied
};

}  // namespace taskd::store
