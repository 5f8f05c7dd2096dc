#include "store/unseen_writes.h"

namespace taskd::store {

void UnseenWrites::ForgetExecuted() {
  for (; !order_.empty() && order_.front().first <= executed_; order_.pop_front()) {
    auto written = written_.find(order_.front().second);
    if (written != written_.end() && written->second <= executed_) written_.erase(written);
  }
  for (; !silent_.empty() && silent_.front().number <= executed_; silent_.pop_front()) {
    auto writes = of_stream_.find(silent_.front().caller.stream);
    if (writes == of_stream_.end()) continue;
    writes->second.pop_front();
    if (writes->second.empty()) of_stream_.erase(writes);
  }
}

void UnseenWrites::AddSilent(const StoreCall& call, uint64_t id) {
  silent_.push_back({call.caller, sent_, id});
  of_stream_[call.caller.stream].push_back({call.frame, sent_});
}

bool UnseenWrites::AnyOf(uint64_t stream) const {
  auto found = of_stream_.find(stream);
  return found != of_stream_.end() && found->second.back().number > executed_;
}

bool UnseenWrites::AnySince(uint64_t stream, uint64_t number) const {
  auto found = of_stream_.find(stream);
  return found != of_stream_.end() && found->second.back().number > number;
}

uint64_t UnseenWrites::Confirmed(uint64_t stream, uint64_t frames) const {
  auto found = of_stream_.find(stream);
  if (found == of_stream_.end()) return frames;
  auto first = std::upper_bound(found->second.begin(), found->second.end(), executed_,
                                [](uint64_t executed, const OfStream& write) { return executed < write.number; });
  return first == found->second.end() ? frames : first->frame - 1;
}

const StoreCaller* UnseenWrites::FindSilent(uint64_t id) const {
  auto found = std::lower_bound(silent_.begin(), silent_.end(), id,
                                [](const Silent& write, uint64_t wanted) { return write.id < wanted; });
  return found != silent_.end() && found->id == id ? &found->caller : nullptr;
}

void UnseenWrites::AddKey(const std::string& key) {
  written_[key] = sent_;
  order_.emplace_back(sent_, key);
}

bool UnseenWrites::IsWrittenSince(const std::string& key, uint64_t number) const {
  auto written = written_.find(key);
  return written != written_.end() && written->second > number;
}

}  // namespace taskd::store
