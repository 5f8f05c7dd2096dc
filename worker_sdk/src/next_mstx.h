// The mstx symbols behind ours. A preloaded libtaskd.so stands in front of mstx's own library; where MSPTI takes the
// marks, they must get there, so ours pass them on and record nothing: they come back through mspti_feed.h, with the
// device's times. The C API of taskd/taskd.h still records by itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "taskd/ring.h"
#include "taskd/taskd.h"

namespace taskd::worker {

class NextMstx {
 public:
  // Any thread. A handle of ours that mstx does not know yet is created there under the same name.
  void Mark(const taskd_domain* domain, const char* message, void* stream) const;
  uint64_t RangeStart(const taskd_domain* domain, const char* message, void* stream) const;
  void RangeEnd(const taskd_domain* domain, uint64_t id) const;

 private:
  friend void StepAside(ring::SegmentHeader& header);
  bool Find();
  bool FindIn(void* library);
  void* Handle(const taskd_domain* domain) const;

  void (*mark_)(const char*, void*);
  uint64_t (*range_start_)(const char*, void*);
  void (*range_end_)(uint64_t);
  void* (*domain_create_)(const char*);
  void (*domain_mark_)(void*, const char*, void*);
  uint64_t (*domain_range_start_)(void*, const char*, void*);
  void (*domain_range_end_)(void*, uint64_t);
  const ring::SegmentHeader* header_;
};

// Null: our own symbols record. Stored with release once all of it is filled in, loaded with acquire by each mark.
#pragma GCC visibility push(hidden)
extern std::atomic<const NextMstx*> g_next_mstx;
#pragma GCC visibility pop

// From now on marks go there, if there is anything behind us and mstx does not call us itself. Takes the dynamic
// linker's lock. Once is for ever; as long as there is nothing it may be called again. One thread at a time.
void StepAside(ring::SegmentHeader& header);

// mstx fills its table with our functions: what is behind us is that table. False: too late, we have stepped aside.
bool StayInFront();

}  // namespace taskd::worker
