#include "store/unseen_writes.h"

namespace taskd::store {

void UnseenWrites::ForgetExecutedKeys() {
  while (!order_.empty() && order_.front().first <= executed_) {
    auto written = written_.find(order_.front().second);
    if (written != written_.end() && written->second <= executed_) written_.erase(written);
    order_.pop_front();
  }
}

void UnseenWrites::AddSilent(const StoreCall& call, uint64_t id) {
  silent_[call.caller.stream].push_back({call.caller, call.frame, sent_, id});
}

bool UnseenWrites::AnyOf(uint64_t stream) {
  auto found = silent_.find(stream);
  if (found == silent_.end()) return false;
  std::deque<Silent>& writes = found->second;
  while (!writes.empty() && writes.front().number <= executed_) writes.pop_front();
  if (!writes.empty()) return true;
  silent_.erase(found);
  return false;
}

bool UnseenWrites::AnySince(uint64_t stream, uint64_t number) const {
  auto found = silent_.find(stream);
  return found != silent_.end() && found->second.back().number > number;
}

uint64_t UnseenWrites::Confirmed(uint64_t stream, uint64_t frames) {
  return AnyOf(stream) ? silent_.at(stream).front().frame - 1 : frames;
}

// Rare, so nothing is kept to find it sooner.
const StoreCaller* UnseenWrites::FindSilent(uint64_t id) const {
  for (const auto& [stream, writes] : silent_) {
    for (const Silent& write : writes) {
      if (write.id == id) return &write.caller;
    }
  }
  return nullptr;
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
