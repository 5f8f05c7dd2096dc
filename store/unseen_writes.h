// What a tier has sent up and the store above may not have executed yet.
//
// Frames that the store above counts (TierFrame::processed) are numbered in their order; its answers say up to which
// it is known to have executed them all.
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
  // The next frame is sent; its number.
  uint64_t NextFrame() { return ++sent_; }
  uint64_t sent() const { return sent_; }
  void Executed(uint64_t frames) { executed_ = std::max(executed_, frames); }
  // What is known to be executed. After each answer has been dealt with: writers may never ask anything.
  void ForgetExecuted();

  // Writes without an answer, by the stream that asked for them. An answer implies to its reader that its earlier
  // writes have happened: so until the root is known to have executed them, an answer has to come from there.
  // `call` was just sent with `id`; ids grow.
  void AddSilent(const StoreCall& call, uint64_t id);
  bool AnyOf(uint64_t stream) const;
  // It has sent one after the frame `number`, executed or not.
  bool AnySince(uint64_t stream, uint64_t number) const;
  // As StoreCore::Confirmed().
  uint64_t Confirmed(uint64_t stream, uint64_t frames) const;
  // Who asked for it; null: it is none of these.
  const StoreCaller* FindSilent(uint64_t id) const;
  void ForgetStream(uint64_t stream) { of_stream_.erase(stream); }

  // Keys that this tier wrote or gave back. An answer that is older brings no copy of them.
  void AddKey(const std::string& key);  // with the last frame sent
  // `key` was written by a later frame than `number`, as far as that matters still.
  bool IsWrittenSince(const std::string& key, uint64_t number) const;
  size_t keys() const { return order_.size(); }

 private:
  struct Silent {
    StoreCaller caller;
    uint64_t number;  // of ours
    uint64_t id;      // of the frame that went up
  };
  struct OfStream {
    uint64_t frame;   // of the stream, where that is a tier
    uint64_t number;  // of ours
  };

  uint64_t sent_ = 0;
  uint64_t executed_ = 0;
  std::deque<Silent> silent_;                                      // in order; of streams that have gone, too
  absl::flat_hash_map<uint64_t, std::deque<OfStream>> of_stream_;  // the same, of those that are here
  absl::flat_hash_map<std::string, uint64_t> written_;             // key -> number of the newest frame
  std::deque<std::pair<uint64_t, std::string>> order_;
};

}  // namespace taskd::store
