// Marks that MSPTI takes (Ascend), as a source beside our own mstx symbols. TaskD contract §4.1 to §4.4.
//
// Design:
// 1. MSPTI is another library's code that runs under its own lock on the training thread, so the two callbacks that it
//    gets from us (a buffer, please; here is one back) do nothing but change the state of a slot in a fixed pool: no
//    lock, no wait, no allocation, no system call. Where the pool is used up it gets the scrap buffer, whose records
//    nobody reads: they are counted as dropped when it comes back. It never gets null: what MSPTI then does is its own
//    secret.
// 2. All else (finding the library, subscribing, switching, flushing, reading buffers) happens in one step function,
//    MsptiStep, on one thread that MsptiStart starts. So a buffer is read on one thread from end to end, which
//    msptiActivityGetNextRecord asks for: it keeps its place in a thread-local variable.
// 3. Buffers are read in the order in which MSPTI took them. One that was taken earlier and is not back yet is waited
//    for, until a flush has returned that began later: it is lost then.
// 4. A record is parsed by a pure function and handed to `emit`. Emit may refuse ("no room now"); the same record is
//    offered again, meanwhile the pool fills, and its end is point 1. So a slow reader costs records, which are
//    counted, and never time of the training. A buffer remembers what was wanted when MSPTI took it, and a change of
//    that is followed by a flush: a record that was made before a switch is judged by the state of then.
// 5. Who subscribes to MSPTI owns it. Until then nothing of it is touched, not even the callbacks: they may be those of
//    a full profiling. That one shows as MSPTI's result 2 and is answered as "not applied"; the next try is a second
//    later, then two, at most five.
// 6. At exit MSPTI's own objects are destroyed by handlers like ours. Ours is registered after MSPTI was first used and
//    once more after its first records, so that it runs before them. It flushes, reads what came, and takes back
//    nothing (no disable, no unsubscribe: these reach objects that were made later and are gone already). From then on
//    callbacks only get scrap, and nothing of MSPTI is called any more.
//
// Names and domains in MSPTI's records are its own strings, which it keeps until its destructors run.
//
// It needs libc only, and is plain C that is C++ as well.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "taskd/mspti_result.h"

#ifdef __cplusplus
extern "C" {
#endif

// A marker's fields, and how far apart MSPTI puts markers: that is only used to count those that nobody reads.
enum { kMsptiFieldBytes = 52, kMsptiMarkerBytes = 56 };
enum { kMsptiPoolBuffers = 8, kMsptiBufferBytes = 2 * 1024 * 1024 };

// Bits of a wanted state. Domains that are neither follow the default one. Bits from kMsptiCallerShift up are the
// caller's.
enum MsptiDomains { kMsptiDefault = 1u << 0, kMsptiCommunication = 1u << 1 };
enum { kMsptiAllDomains = kMsptiDefault | kMsptiCommunication, kMsptiCallerShift = 8 };

// One marker record.
typedef struct MsptiMark {
  uint32_t flag;          // 1, 2, 4, or with a stream 8, 16, 32, as in the file
  uint32_t source;        // 0: stamped by the host, 1: by the device
  uint64_t timestamp_ns;  // Unix, by MSPTI's clock
  uint64_t id;            // of the range or mark; MSPTI counts from 1 in each process. Never 0
  uint32_t process_id;    // of a device record: its device id
  uint32_t thread_id;     // of a device record: its stream id
  const char* name;       // empty in an end and in a device record; never null
  const char* domain;
  uint32_t wanted;  // when MSPTI took the record's buffer; all of it, not parsed
} MsptiMark;

// Reads a packed record of kMsptiFieldBytes bytes at any address. Returns 1; 0 for another kind of record and for a
// flag, a source or an id that no marker has.
int ParseMsptiMarker(const uint8_t* record, MsptiMark* mark);

// What became of a wanted state.
typedef struct MsptiAnswer {
  uint32_t wanted;  // MsptiDomains
  uint32_t code;    // contract §3: 1400 + {0,10,20} + {0,1,2}: default, then communication off, on, failed
  int error;        // 0: applied; else MSPTI's result of the first call that failed
} MsptiAnswer;

// All are called by the thread of MsptiStep, without a lock.
typedef struct MsptiConfig {
  uint32_t (*wanted)(void* context);                  // MsptiDomains and bits of the caller's; once a step
  int (*emit)(void* context, const MsptiMark* mark);  // 1: taken; 0: no room now, it is offered again
  // To every try and to every change of `wanted`, of the caller's bits too; the same one is not reported twice. May be
  // null.
  void (*answer)(void* context, const MsptiAnswer* answer);
  // There is a libmspti.so without this function: nothing comes of it. May be null.
  void (*unusable)(void* context, const char* missing);
  void* context;
  // A futex that changes whenever `wanted` does, also from another process; it is only read. Null: one of our own.
  uint32_t* wake_word;
  uint64_t* dropped;  // counts with MsptiStats.dropped, atomically, on the training threads too. May be null
} MsptiConfig;

// Whether MsptiOpen has anything to open. Loads nothing: the dynamic linker's locks and an allocator's are not taken
// while the program may fork. Any thread.
int MsptiMayBeThere(void);

// Finds libmspti.so: one that is loaded, else in LD_LIBRARY_PATH, else as the dynamic linker does, else at its default
// place. Returns 0; 1 where there is none; 2 where it is not what we need: *missing then is the function it lacks.
// Called again after a 0 it takes the new configuration. Not while the thread runs.
int MsptiOpen(const MsptiConfig* config, const char** missing);

// Does what is due at `now_ms` (any monotonic clock), reads at most one buffer, and returns in how many ms to call it
// again; 0: there is more to read. After MsptiOpen; one thread at a time.
int MsptiStep(int64_t now_ms);

// Starts a thread that opens MSPTI and steps it, unless there is none. Returns 0, also where it runs already; -1: no
// thread, or a forked child: MSPTI's own threads are not there. The caller's signal mask is inherited: block all.
int MsptiStart(const MsptiConfig* config);

// Makes the thread step now. Any thread, also a callback's.
void MsptiWake(void);

// Ends the thread within timeout_ms, as far as MSPTI lets it. What MSPTI had is read first, as far as `emit` takes it.
//   kMsptiRelease: unsubscribes as a switch to off does. MsptiStart may be called again.
//   kMsptiAtExit:  leaves MSPTI as it is, for ever. Done by itself at exit.
// Returns 0, also where no thread runs; -1: it did not end in time.
enum MsptiStopKind { kMsptiRelease = 1, kMsptiAtExit = 2 };
int MsptiStop(enum MsptiStopKind kind, int timeout_ms);

// In a forked child: forgets the thread, gives MSPTI nothing but scrap.
void MsptiForgetInChild(void);

// Any thread.
typedef struct MsptiStats {
  int subscribed;
  uint32_t buffers_out;      // with MSPTI
  uint64_t emitted;          // records that emit took
  uint64_t dropped;          // records that found no buffer, or were left at a stop
  uint64_t malformed;        // records that are no markers, and all behind a record that cannot be passed
  uint64_t unknown_buffers;  // came back, but are not ours
} MsptiStats;
void MsptiGetStats(MsptiStats* stats);

#ifdef __cplusplus
}  // extern "C"
#endif
