#include "store/sharing.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace taskd::store {
namespace {

constexpr size_t kKeyOverhead = 128;

}  // namespace

bool Sharing::WhenUnlocked(const std::vector<std::string>& keys, Continuation then) {
  if (locks_.empty()) return false;
  absl::flat_hash_set<uint64_t> batches;
  for (const std::string& key : keys) {
    auto lock = locks_.find(key);
    if (lock != locks_.end()) batches.insert(lock->second);
  }
  if (batches.empty()) return false;
  auto left = std::make_shared<size_t>(batches.size());
  for (uint64_t id : batches) {
    batches_[id].then.push_back([left, then] {
      if (--*left == 0) then();
    });
  }
  return true;
}

bool Sharing::MayGrant(const std::string& key) {
  if (bytes_ >= kMaxBytes && gone_count_ > 0) ForgetGone();
  return bytes_ < kMaxBytes || holders_.contains(key);
}

bool Sharing::HasHolder(const std::vector<uint64_t>& bits) const {
  for (size_t word = 0; word < bits.size(); ++word) {
    if ((bits[word] & ~(word < gone_.size() ? gone_[word] : 0)) != 0) return true;
  }
  return false;
}

bool Sharing::HasCopies(const std::string& key) const {
  auto holders = holders_.find(key);
  return holders != holders_.end() && HasHolder(holders->second);
}

uint32_t Sharing::SlotOf(uint64_t stream) {
  auto [found, added] = slots_.try_emplace(stream, 0);
  if (!added) return found->second;
  size_t slot = 0;
  while (slot < streams_.size() && (streams_[slot] != 0 || IsGone(slot))) ++slot;
  found->second = static_cast<uint32_t>(slot);
  if (slot == streams_.size()) streams_.push_back(0);
  streams_[slot] = stream;
  return found->second;
}

void Sharing::ForgetGone() {
  for (auto holders = holders_.begin(); holders != holders_.end();) {
    std::vector<uint64_t>& bits = holders->second;
    for (size_t word = 0; word < std::min(bits.size(), gone_.size()); ++word) bits[word] &= ~gone_[word];
    auto next = std::next(holders);
    if (std::all_of(bits.begin(), bits.end(), [](uint64_t word) { return word == 0; })) Erase(holders);
    holders = next;
  }
  gone_.clear();
  gone_count_ = 0;
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
  if (auto slot = slots_.find(stream); slot != slots_.end()) {
    const uint32_t number = slot->second;
    streams_[number] = 0;
    slots_.erase(slot);
    if (gone_.size() <= number / 64) gone_.resize(number / 64 + 1);
    gone_[number / 64] |= uint64_t{1} << number % 64;
    if (++gone_count_ >= kMostGone) ForgetGone();
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
        const size_t slot = word * 64 + std::countr_zero(bits);
        if (!IsGone(slot)) by_stream[streams_[slot]].push_back(key);
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
