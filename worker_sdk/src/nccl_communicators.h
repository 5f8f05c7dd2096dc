// NCCL's communicators of this process: which one a handle is, as all its ranks call it, and this rank's place in it.
// Fixed size, no lock, no allocation. A handle that is not here (too many, or made in a way that is not seen) is answered
// as unknown. One that is taken away while another thread looks may be answered as its successor.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace taskd::worker {

struct NcclMember {
  uint64_t communicator = 0;  // the same on all its ranks; 0: not known
  int ranks = 0;              // 0: not asked yet, negative: not to be had
  int rank = 0;
};

class NcclCommunicators {
 public:
  // In the place of an earlier one with this handle. A null handle is none.
  void Put(const void* handle, const NcclMember& member) {
    if (handle == nullptr) return;
    Entry* entry = Find(handle);
    if (entry == nullptr) entry = TakeEntry(handle);
    if (entry == nullptr) return;
    entry->communicator.store(member.communicator, std::memory_order_relaxed);
    entry->place.store(Pack(member), std::memory_order_relaxed);
    entry->splits.store(0, std::memory_order_relaxed);
    entry->handle.store(Key(handle), std::memory_order_release);
  }
  bool Get(const void* handle, NcclMember& member) {
    const Entry* entry = Find(handle);
    if (entry == nullptr) return false;
    const uint64_t place = entry->place.load(std::memory_order_relaxed);
    member = {entry->communicator.load(std::memory_order_relaxed), static_cast<int>(place >> 32),
              static_cast<int>(place & UINT32_MAX)};
    return true;
  }
  void SetPlace(const void* handle, const NcclMember& member) {
    if (Entry* entry = Find(handle)) entry->place.store(Pack(member), std::memory_order_relaxed);
  }
  // How often it has been split before; counts up.
  uint32_t NextSplit(const void* handle) {
    Entry* entry = Find(handle);
    return entry == nullptr ? 0 : entry->splits.fetch_add(1, std::memory_order_relaxed);
  }
  void Remove(const void* handle) {
    while (Entry* entry = Find(handle)) entry->handle.store(kFree, std::memory_order_release);
  }

 private:
  static constexpr size_t kEntries = 4096;
  static constexpr size_t kWindow = 16;
  static constexpr uintptr_t kFree = 0;
  static constexpr uintptr_t kBeingFilled = 1;

  struct Entry {
    std::atomic<uintptr_t> handle{kFree};
    std::atomic<uint64_t> communicator{0};
    std::atomic<uint64_t> place{0};  // ranks, rank
    std::atomic<uint32_t> splits{0};
  };

  static uintptr_t Key(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }
  static uint64_t Pack(const NcclMember& member) {
    return uint64_t{static_cast<uint32_t>(member.ranks)} << 32 | static_cast<uint32_t>(member.rank);
  }
  // Handles are addresses: the multiplication moves what differs up.
  Entry& EntryAt(const void* handle, size_t i) {
    return entries_[((Key(handle) * 0x9e3779b97f4a7c15u >> 40) + i) % kEntries];
  }
  Entry* Find(const void* handle) {
    for (size_t i = 0; handle != nullptr && i < kWindow; ++i) {
      Entry& entry = EntryAt(handle, i);
      if (entry.handle.load(std::memory_order_acquire) == Key(handle)) return &entry;
    }
    return nullptr;
  }
  Entry* TakeEntry(const void* handle) {
    for (size_t i = 0; i < kWindow; ++i) {
      uintptr_t free = kFree;
      Entry& entry = EntryAt(handle, i);
      if (entry.handle.compare_exchange_strong(free, kBeingFilled, std::memory_order_acquire)) return &entry;
    }
    return nullptr;
  }

  Entry entries_[kEntries];
};

}  // namespace taskd::worker
