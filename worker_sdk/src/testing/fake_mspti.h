// A libmspti.so for tests: what TaskD contract §4.2 to §4.4 promises of the real one, and nothing more.
//
//   - the functions of §4.1 with the result codes of §4.2; a second subscriber gets 2;
//   - markers of 56 packed bytes; a range with a stream gives 4 records, ends and device records have "" as name and
//     domain (§4.3);
//   - one lock, held while a record is appended and while callbacks run, which is on the thread that made the mark;
//     a buffer is handed over at 80 %, or by FlushAll (§4.3);
//   - the cursor of msptiActivityGetNextRecord is thread-local, and stays where it is at an unknown kind;
//   - every domain is on until it is disabled; names over 254 bytes are refused; names live until the library's exit
//     handler. A call after the objects that it needs are destroyed ends the process with SIGABRT.
//
// Marks are made by the functions below: the way from mstx to MSPTI is not part of the contract. Any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void FakeMark(const char* domain, const char* name, int stream);
uint64_t FakeRangeStart(const char* domain, const char* name, int stream);  // 0: switched off
void FakeRangeEnd(const char* domain, uint64_t id, int stream);
// Any bytes as one record.
void FakeAppend(const void* record, size_t bytes);

// The next `times` calls (-1: all) of a function give `code`. Functions by their names after "mspti", without
// "Activity" and "Marker": Subscribe, Unsubscribe, RegisterCallbacks, Enable, Disable, EnableDomain, DisableDomain.
void FakeFail(const char* function, int code, int times);
// As if a full profiling had subscribed, or had gone.
void FakeOtherSubscriber(int there);
// Full buffers are not handed over at once but by FakeHandOverHeld, oldest first as number 0, or by a flush: the real
// library has threads of its own for that.
void FakeHoldHandOver(int hold);
void FakeHandOverHeld(int which);

// What the contract leaves open, for those that another MSPTI may choose.
typedef struct FakeTraits {
  size_t marker_bytes;    // 56; 52 without the padding
  int request_in_enable;  // a buffer is asked for when the marker kind is enabled
  int flush_only;         // a full buffer is not handed over, what does not fit is dropped
  int place_in_argument;  // GetNextRecord goes on behind *record, null is the first, and ignores the thread
} FakeTraits;
void FakeSetTraits(const FakeTraits* traits);

// The calls since the last look, but for flushes and records: "Subscribe();Enable(1);".
void FakeTakeLog(char* out, size_t bytes);

typedef struct FakeStats {
  uint64_t dropped;   // records without a buffer
  uint64_t rejected;  // names too long
  uint64_t requests;  // buffers asked for
  int held;
  int marker_enabled;
  int subscriber;  // 0: none, 1: ours, 2: another
} FakeStats;
void FakeGetStats(FakeStats* stats);

#ifdef __cplusplus
}  // extern "C"
#endif
