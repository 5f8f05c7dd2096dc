#include "store/sharing.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace taskd::store {
namespace {

constexpr size_t kKeyOverhead = 128;

}  // namespace

void Sharing::WhenUnlocked(const std::string& key, Continuation then) {
  batches_[locks_.at(key)].then.push_back(std::move(then));
}

uint32_t Sharing::SlotOf(uint64_t stream) {
  auto [found, added] = slots_.try_emplace(stream, 0);
  if (!added) return found->second;
  auto free = std::find(streams_.begin(), streams_.end(), 0);
  found->second = static_cast<uint32_t>(free - streams_.begin());
  if (free == streams_.end()) {
    streams_.push_back(stream);
  } else {
    *free = stream;
  }
  return found->second;
}

void Sharing::Grant(const std::string& key, uint64_t stream) {
  const uint32_t slot = SlotOf(stream);
  auto [holders, added] = holders_.try_emplace(key);
  std::vector<uint64_t>& bits = holders->second;
  if (added) bytes_ += key.size() + kKeyOverhead;
  if (bits.size() <= slot / 64) {
    bytes_ += (slot / 64 + 1 - bits.size()) * sizeof(uint64_t);
    bits.resize(slot / 64 + 1);
  }
  bits[slot / 64] |= uint64_t{1} << slot % 64;
}

void Sharing::Erase(Holders::iterator holders) {
  bytes_ -= holders->first.size() + kKeyOverhead + holders->second.size() * sizeof(uint64_t);
  holders_.erase(holders);
}

void Sharing::Drop(const std::string& key, uint64_t stream) {
  auto slot = slots_.find(stream);
  auto holders = holders_.find(key);
  if (slot == slots_.end() || holders == holders_.end() || holders->second.size() <= slot->second / 64) return;
  std::vector<uint64_t>& bits = holders->second;
  bits[slot->second / 64] &= ~(uint64_t{1} << slot->second % 64);
  if (std::all_of(bits.begin(), bits.end(), [](uint64_t word) { return word == 0; })) Erase(holders);
}

void Sharing::DropStream(uint64_t stream) {
  auto slot = slots_.find(stream);
  if (slot != slots_.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, bits] : holders_) {
      if (bits.size() > slot->second / 64 && (bits[slot->second / 64] >> slot->second % 64 & 1)) keys.push_back(key);
    }
    for (const std::string& key : keys) Drop(key, stream);
    streams_[slot->second] = 0;
    slots_.erase(slot);
  }
  std::vector<uint64_t> waiting;
  for (const auto& [id, batch] : batches_) {
    if (std::find(batch.missing.begin(), batch.missing.end(), stream) != batch.missing.end()) waiting.push_back(id);
  }
  for (uint64_t id : waiting) Acknowledged(id, stream);
}

bool Sharing::Revoke(const std::vector<std::string>& keys, uint64_t except, Continuation then) {
  if (holders_.empty()) return true;
  absl::flat_hash_map<uint64_t, std::vector<std::string>> by_stream;
  for (const std::string& key : keys) {
    Drop(key, except);
    auto holders = holders_.find(key);
    if (holders == holders_.end()) continue;
    for (size_t word = 0; word < holders->second.size(); ++word) {
      for (uint64_t bits = holders->second[word]; bits != 0; bits &= bits - 1) {
        by_stream[streams_[word * 64 + std::countr_zero(bits)]].push_back(key);
      }
    }
    Erase(holders);
  }
  if (by_stream.empty()) return true;

  const uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.keys = keys;
  batch.since_ns = now_ns_;
  batch.then.push_back(std::move(then));
  for (const std::string& key : keys) locks_[key] = id;
  for (const auto& [stream, of_stream] : by_stream) batch.missing.push_back(stream);
  for (const auto& [stream, of_stream] : by_stream) send_revoke_(stream, id, of_stream);
  return false;
}

void Sharing::Acknowledge(uint64_t stream, uint64_t batch) { Acknowledged(batch, stream); }

void Sharing::Acknowledged(uint64_t batch_id, uint64_t stream) {
  auto found = batches_.find(batch_id);
  if (found == batches_.end()) return;
  std::erase(found->second.missing, stream);
  if (!found->second.missing.empty()) return;
  Batch batch = std::move(found->second);
  batches_.erase(found);
  for (const std::string& key : batch.keys) locks_.erase(key);
  for (Continuation& then : batch.then) then();
}

std::vector<uint64_t> Sharing::Late(int64_t since_ns) const {
  std::vector<uint64_t> late;
  for (const auto& [id, batch] : batches_) {
    if (batch.since_ns < since_ns) late.insert(late.end(), batch.missing.begin(), batch.missing.end());
  }
  return late;
}

}  // namespace taskd::store
