// Another tool's handles, and what we know by them. Fixed size, no lock, no allocation: it may be used in a signal
// handler.
//
// Order: a slot goes from {0, 0} to {key, 0}, {key, value}, {key, 0} and back. Who finds a key (acquire) sees the value
// that was there when the key was stored (release), 0, or a later one; never one of the key before, which Take set to 0
// before it gave the slot up (release), and Insert saw that (acquire) before it took it. The value is stored with
// release and loaded with acquire because what it points at may be new, too.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace taskd::worker {

// Keys are not 0, values are not 0, and one key is inserted once before it is taken.
template <size_t kSlots>
class HandleMap {
 public:
  // False: no place near where it belongs.
  bool Insert(uint64_t key, uint64_t value) {
    const size_t home = Home(key);
    for (size_t i = 0; i < kWindow; ++i) {
      Slot& slot = slots_[(home + i) % kSlots];
      uint64_t expected = 0;
      // The value first would be nobody's; a key without a value is not found yet.
      if (slot.key.load(std::memory_order_relaxed) != 0) continue;
      if (!slot.key.compare_exchange_strong(expected, key, std::memory_order_acq_rel)) continue;
      slot.value.store(value, std::memory_order_release);
      return true;
    }
    return false;
  }

  // 0: not there.
  uint64_t Find(uint64_t key) const {
    const size_t home = Home(key);
    for (size_t i = 0; i < kWindow; ++i) {
      const Slot& slot = slots_[(home + i) % kSlots];
      if (slot.key.load(std::memory_order_acquire) == key) return slot.value.load(std::memory_order_acquire);
    }
    return 0;
  }

  // Finds it and forgets it.
  uint64_t Take(uint64_t key) {
    const size_t home = Home(key);
    for (size_t i = 0; i < kWindow; ++i) {
      Slot& slot = slots_[(home + i) % kSlots];
      if (slot.key.load(std::memory_order_acquire) != key) continue;
      const uint64_t value = slot.value.exchange(0, std::memory_order_acq_rel);
      if (value == 0) continue;
      slot.key.store(0, std::memory_order_release);
      return value;
    }
    return 0;
  }

 private:
  static constexpr size_t kWindow = 16;
  static_assert(kSlots >= kWindow && (kSlots & (kSlots - 1)) == 0);

  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> value{0};
  };

  // Handles are addresses or small numbers: the multiplication moves what differs up.
  static size_t Home(uint64_t key) { return static_cast<size_t>(key * 0x9e3779b97f4a7c15u >> 40) % kSlots; }

  Slot slots_[kSlots];
};

}  // namespace taskd::worker
