// A ring segment written by hand, for tests of its readers: what libtaskd.so would write, and what it never would.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string>

#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "proxy/tick_clock.h"
#include "taskd/ring.h"

namespace taskd::testing {

class FakeSegment {
 public:
  // Ticks are CLOCK_MONOTONIC ns unless `clock` says otherwise; time starts at `start_ns` on both clocks.
  explicit FakeSegment(uint64_t start_ns = 1'000'000'000, ring::ClockKind clock = ring::kClockMonotonic)
      : fd_(memfd_create("fake_segment", MFD_CLOEXEC)) {
    bytes_ = ring::kDataOffset + kRings * ring::kSmallRingBytes;
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes_)), 0);
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(base, MAP_FAILED);
    header_ = static_cast<ring::SegmentHeader*>(base);
    header_->magic = ring::kMagic;
    header_->version = ring::kVersion;
    header_->header_bytes = sizeof(ring::SegmentHeader);
    header_->pid = 4242;
    header_->rank = 3;
    header_->local_rank = 1;
    header_->clock = clock;
    header_->start_ticks = start_ns;
    header_->start_monotonic_ns = start_ns;
    header_->start_realtime_ns = kRealtimeStartNs;
    header_->gate = ring::kGateAllKinds | ring::kGateUndecided;
    strcpy(header_->domain_names[0], "default");
    strcpy(header_->domain_names[1], "communication");
    header_->domains = 2;
  }
  ~FakeSegment() { munmap(header_, bytes_); }

  static constexpr uint64_t kRealtimeStartNs = 1'700'000'000'000'000'000;
  static constexpr int kRings = 4;

  UniqueFd Fd() const { return UniqueFd(dup(fd_.get())); }
  ring::SegmentHeader& header() { return *header_; }
  ring::ThreadSlot& slot(int ring) { return header_->thread_slots[ring]; }
  uint64_t* data(int ring) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(header_) + slot(ring).data_offset);
  }

  // Makes ring `header().slots` ready.
  int AddRing() {
    int ring = static_cast<int>(header_->slots.load());
    EXPECT_LT(ring, kRings);
    slot(ring).data_offset = ring::kDataOffset + ring * uint64_t{ring::kSmallRingBytes};
    slot(ring).data_bytes = ring::kSmallRingBytes;
    slot(ring).ready = 1;
    header_->slots = ring + 1;
    return ring;
  }

  struct Record {
    ring::RecordType type = ring::kRecordMark;
    uint64_t ticks = 0;
    uint64_t id = 1;
    std::string name = {};
    ring::Kind kind = ring::kKindOther;
    uint32_t flags = 0;
    uint32_t domain = ring::kDomainDefault;
    uint32_t tid = 77;
    // With ring::kFlagSource.
    uint64_t timestamp_ns = 0;
    uint32_t process_id = 0;
    uint32_t thread_id = 0;
  };

  void Append(int ring, const Record& record) {
    const uint64_t end = (ring::kRecordHeaderBytes + record.name.size() + 7) / 8 * 8;
    const bool source = (record.flags & ring::kFlagSource) != 0;
    const uint64_t length = end + (source ? ring::kSourceTrailerBytes : 0);
    uint64_t head = slot(ring).head.load();
    const uint64_t left = (slot(ring).reserved.load() - head);
    if (left < length) {
      if (left > 0) Store(ring, head, ring::PackWord0(left, ring::kRecordPad, 0, 0));
      head += left;
      slot(ring).reserved = head + ring::kBlockBytes;
    }
    Store(ring, head, ring::PackWord0(length, record.type, record.flags, record.tid));
    Store(ring, head + 8, record.ticks);
    Store(ring, head + 16, record.id);
    Store(ring, head + 24, ring::PackWord3(sequence_[ring]++, record.name.size(), record.domain, record.kind));
    for (size_t i = 0; i < record.name.size(); i += 8) {
      uint64_t word = 0;
      memcpy(&word, record.name.data() + i, std::min<size_t>(8, record.name.size() - i));
      Store(ring, head + 32 + i, word);
    }
    if (source) {
      Store(ring, head + end, record.timestamp_ns);
      Store(ring, head + end + 8, uint64_t{record.process_id} | uint64_t{record.thread_id} << 32);
    }
    slot(ring).head.store(head + length, std::memory_order_release);
  }

  void Store(int ring, uint64_t position, uint64_t word) {
    __atomic_store_n(&data(ring)[position % ring::kSmallRingBytes / 8], word, __ATOMIC_RELAXED);
  }

 private:
  UniqueFd fd_;
  size_t bytes_ = 0;
  ring::SegmentHeader* header_ = nullptr;
  uint32_t sequence_[kRings] = {};
};

}  // namespace taskd::testing
