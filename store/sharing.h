// Remembers which tiers hold copies of which keys, and which keys are locked while copies are revoked (core.h, 2).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace taskd::store {

class Sharing {
 public:
  using Continuation = std::function<void()>;
  using SendRevoke = std::function<void(uint64_t stream, uint64_t batch, const std::vector<std::string>& keys)>;

  explicit Sharing(SendRevoke send_revoke) : send_revoke_(std::move(send_revoke)) {}

  // The memory limit for the knowledge about copies. Beyond it, keys without a copy get none.
  static constexpr size_t kMaxBytes = 256 * 1024 * 1024;

  bool IsLocked(const std::string& key) const { return !locks_.empty() && locks_.contains(key); }
  // Returns false if none of `keys` is locked. Otherwise `then` runs once, when all keys that are locked now have been
  // unlocked. It does not run for each of them, which may be thousands. By then some keys may be locked again.
  bool WhenUnlocked(const std::vector<std::string>& keys, Continuation then);

  bool MayGrant(const std::string& key);
  // Notes that `stream` holds a copy of `key`, which must not be locked.
  void Grant(const std::string& key, uint64_t stream);
  // Notes that `stream` does not hold the copy any more.
  void Drop(const std::string& key, uint64_t stream);
  void DropStream(uint64_t stream);

  // Revokes all copies of `keys`, none of which may be locked. The copies of `except` are forgotten without a message,
  // because that stream knows of the change. Returns true if no copies are left. Otherwise the keys are locked, and
  // `then` runs when they are free, before other calls that wait for them.
  bool Revoke(const std::vector<std::string>& keys, uint64_t except, Continuation then);
  void Acknowledge(uint64_t stream, uint64_t batch);
  size_t bytes() const { return bytes_; }  // approximate memory
  bool HasCopies(const std::string& key) const;

  // Returns the streams that have owed an acknowledgement since before `since_ns`, by the time of set_now_ns().
  std::vector<uint64_t> Late(int64_t since_ns) const;
  void set_now_ns(int64_t now_ns) { now_ns_ = now_ns; }

 private:
  struct Batch {
    std::vector<std::string> keys;
    std::vector<uint64_t> missing;  // streams that have not acknowledged
    std::vector<Continuation> then;
    int64_t since_ns = 0;
  };

  using Holders = absl::flat_hash_map<std::string, std::vector<uint64_t>>;

  // Streams that have gone keep their slots until there are this many. Searching all keys for each of them would take
  // longer than a peer needs to connect again.
  static constexpr size_t kMostGone = 256;

  uint32_t SlotOf(uint64_t stream);
  bool IsGone(size_t slot) const { return slot / 64 < gone_.size() && (gone_[slot / 64] >> slot % 64 & 1) != 0; }
  bool HasHolder(const std::vector<uint64_t>& bits) const;  // returns true if one of the holders is still here
  void ForgetGone();
  void Erase(Holders::iterator holders);
  void Acknowledged(uint64_t batch_id, uint64_t stream);

  SendRevoke send_revoke_;
  // Each key has one bit for each slot, so that thousands of keys held by thousands of tiers fit: 256 bytes a key for
  // 2,048 tiers.
  Holders holders_;
  size_t bytes_ = 0;                               // size of holders_
  absl::flat_hash_map<uint64_t, uint32_t> slots_;  // by stream
  std::vector<uint64_t> streams_;                  // by slot; 0: the slot is free or in gone_
  std::vector<uint64_t> gone_;  // bits of the slots of streams that have gone and that holders_ still has
  size_t gone_count_ = 0;
  absl::flat_hash_map<std::string, uint64_t> locks_;  // key -> batch
  absl::flat_hash_map<uint64_t, Batch> batches_;
  uint64_t next_batch_ = 1;
  int64_t now_ns_ = 0;
};

}  // namespace taskd::store
