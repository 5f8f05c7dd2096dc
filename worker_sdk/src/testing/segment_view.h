// For tests and benchmarks: this process's own segment as a proxy would see it, without a proxy's caution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "taskd/ring.h"

namespace taskd::testing {

struct Record {
  uint32_t slot;
  ring::RecordType type;
  uint32_t flags;
  uint32_t tid;
  uint64_t ticks;
  uint64_t id;
  uint32_t sequence;
  uint32_t domain;
  uint32_t kind;
  std::string name;
};

// Descriptors of this process's own segments.
std::vector<int> SegmentDescriptors();

class SegmentView {
 public:
  // Maps the segment of this process, or any descriptor of one. Ends the program where there is none.
  SegmentView();
  explicit SegmentView(int fd);
  ~SegmentView();
  SegmentView(const SegmentView&) = delete;
  SegmentView& operator=(const SegmentView&) = delete;

  ring::SegmentHeader& header() { return *header_; }
  int fd() const { return fd_; }
  void SetGate(uint32_t gate) { header_->gate.store(gate); }

  // Every intact record, pads left out; by slot and then by age. `problem` is set where the layout is broken.
  std::vector<Record> Records(std::string* problem = nullptr) const;
  // The last one that the calling thread made.
  Record Last() const;

 private:
  int fd_;
  ring::SegmentHeader* header_;
};

}  // namespace taskd::testing
