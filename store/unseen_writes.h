// Remembers what a tier has sent up that the store above may not have executed yet.
//
// The frames that the store above counts (TierFrame::processed) are numbered in their order. Its answers say how many
// of the first frames it has executed for certain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "store/core.h"

namespace taskd::store {

class UnseenWrites {
 public:
  // Counts the next frame. Returns its number.
  uint64_t NextFrame() { return ++sent_; }
  uint64_t sent() const { return sent_; }
  void Executed(uint64_t frames) { executed_ = std::max(executed_, frames); }
  // Forgets writes that are known to be executed. To be called after each answer has been handled.
  void ForgetExecuted();

  // These are writes without an answer, by the stream that made them. An answer implies to its reader that the reader's
  // earlier writes have happened. So until the root is known to have executed them, answers have to come from the root.
  void AddSilent(const StoreCall& call, uint64_t id);
  bool AnyOf(uint64_t stream) const;
  // Returns true if the stream has sent a write after frame `number`, executed or not.
  bool AnySince(uint64_t stream, uint64_t number) const;
  // Implements StoreCore::Confirmed().
  uint64_t Confirmed(uint64_t stream, uint64_t frames) const;
  // Returns the caller of the write; null if it is not one of these.
  const StoreCaller* FindSilent(uint64_t id) const;
  void ForgetStream(uint64_t stream) { of_stream_.erase(stream); }

  // These are keys that this tier wrote or gave back. An older answer must not bring a copy of them.
  void AddKey(const std::string& key);  // in the last frame sent
  // Returns true if `key` was written by a later frame than `number` that may not have been executed yet.
  bool IsWrittenSince(const std::string& key, uint64_t number) const;
  size_t keys() const { return order_.size(); }

 private:
  struct Silent {
    StoreCaller caller;
    uint64_t number;  // this tier's number of the frame
    uint64_t id;      // id in that frame
  };
  struct OfStream {
    uint64_t frame;   // the stream's number of its frame if it is a tier
    uint64_t number;  // this tier's number of the frame
  };

  uint64_t sent_ = 0;
  uint64_t executed_ = 0;
  std::deque<Silent> silent_;                                      // in order; includes those of streams that have gone
  absl::flat_hash_map<uint64_t, std::deque<OfStream>> of_stream_;  // the same for streams that are still here
  absl::flat_hash_map<std::string, uint64_t> written_;             // key -> number of the newest frame
  std::deque<std::pair<uint64_t, std::string>> order_;
};

}  // namespace taskd::store
