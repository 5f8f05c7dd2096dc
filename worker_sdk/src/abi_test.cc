// What separately built programs rely on: the layout of the shared memory, the messages of the proxy's socket, and the C API.
// docs/compatibility.md says what may change when. A failed assertion here means one of two things: undo the change, or raise
// ring::kVersion (hello::kVersion) and write the new numbers down here in the same commit. The C API only grows.
#include <cstddef>
#include <type_traits>

#include "gtest/gtest.h"
#include "taskd/hello.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"

namespace taskd::worker {
namespace {

#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "::" #field " has moved")

namespace ring_version_2 {
using namespace ring;  // NOLINT(google-build-using-namespace): a table of its names

static_assert(kVersion == 2, "write the layout of the new version down here");

// Read of segments of every release.
static_assert(kMagic == 0x31474e52444b5354);
AT(SegmentHeader, magic, 0);
AT(SegmentHeader, version, 8);
AT(SegmentHeader, header_bytes, 12);
AT(SegmentHeader, rank, 20);
AT(SegmentHeader, slots, 128);
AT(SegmentHeader, attached, 192);

AT(SegmentHeader, pid, 16);
AT(SegmentHeader, local_rank, 24);
AT(SegmentHeader, clock, 28);
AT(SegmentHeader, start_ticks, 32);
AT(SegmentHeader, start_monotonic_ns, 40);
AT(SegmentHeader, start_realtime_ns, 48);
AT(SegmentHeader, gate, 64);
AT(SegmentHeader, domains, 132);
AT(SegmentHeader, dropped, 136);
AT(SegmentHeader, source_domains, 144);
AT(SegmentHeader, source_code, 148);
AT(SegmentHeader, source_error, 152);
AT(SegmentHeader, undecided_keep, 196);
AT(SegmentHeader, intent, 200);
AT(SegmentHeader, anchors, 232);
AT(SegmentHeader, anchor_index, 264);
AT(SegmentHeader, anchor_index_next, 268);
AT(SegmentHeader, written, 272);
AT(SegmentHeader, written_next, 320);
AT(SegmentHeader, domain_names, 368);
AT(SegmentHeader, thread_slots, 33152);
static_assert(sizeof(SegmentHeader) == 131456);
static_assert(kDataOffset == 196608);

AT(WriteIntent, valid, 0);
AT(WriteIntent, file, 8);
AT(WriteIntent, offset, 16);
AT(WriteIntent, bytes, 24);
static_assert(sizeof(WriteIntent) == 32);
AT(ClockAnchor, ticks, 0);
AT(ClockAnchor, monotonic_ns, 8);
static_assert(sizeof(ClockAnchor) == 16);

AT(ThreadSlot, ready, 0);
AT(ThreadSlot, data_offset, 8);
AT(ThreadSlot, data_bytes, 16);
AT(ThreadSlot, head, 64);
AT(ThreadSlot, reserved, 72);
AT(ThreadSlot, cost_ticks, 80);
AT(ThreadSlot, cost_samples, 88);
AT(ThreadSlot, dropped, 96);
AT(ThreadSlot, consumed, 128);
AT(ThreadSlot, consumed_next, 136);
AT(ThreadSlot, lost, 144);
AT(ThreadSlot, lost_next, 152);
AT(ThreadSlot, sequence, 160);
AT(ThreadSlot, sequence_next, 164);
static_assert(sizeof(ThreadSlot) == 192);

static_assert(kBlockBytes == 32768 && kLargeRings == 4 && kLargeRingBytes == 2097152 && kSmallRingBytes == 524288);
static_assert(kMaxThreads == 512 && kMaxDomains == 128 && kDomainNameBytes == 256 && kMaxNameBytes == 254);
static_assert(kRecordHeaderBytes == 32 && kSourceTrailerBytes == 16 && kMaxRecordBytes == 304);
static_assert(kFirstOwnId == uint64_t{1} << 48);
static_assert(kDomainDefault == 0 && kDomainCommunication == 1);

static_assert(kGateStep == 1 && kGateSaveCheckpoint == 2 && kGateForward == 4 && kGateDataLoader == 8);
static_assert(kGateCommunication == 16 && kGateOther == 32 && kGateUndecided == 64);
static_assert(kKindStep == 0 && kKindSaveCheckpoint == 1 && kKindForward == 2 && kKindDataLoader == 3);
static_assert(kKindCommunication == 4 && kKindOther == 5 && kKinds == 6);
static_assert(kRecordPad == 1 && kRecordMark == 2 && kRecordRangeStart == 3 && kRecordRangeEnd == 4);
static_assert(kFlagStream == 1 && kFlagUndecided == 2 && kFlagTruncated == 4 && kFlagSource == 8 && kFlagDevice == 16);
static_assert(kClockMonotonic == 1 && kClockCounter == 2);
static_assert(kSourceDefault == 1 && kSourceCommunication == 2 && kSourceAnswered == 1u << 31);
static_assert(SourceCodeOf(0) == 1400 && SourceCodeOf(kSourceDefault) == 1410 &&
              SourceCodeOf(kSourceCommunication) == 1401);
static_assert(PackWord0(0x1234, kRecordRangeEnd, 0x56, 0x789abcde) == 0x789abcde'56'04'1234);
static_assert(PackWord3(0x12345678, 0x9abc, 0xde, 0xf0) == 0xf0'de'9abc'12345678);
}  // namespace ring_version_2

namespace hello_version_1 {
using namespace hello;  // NOLINT(google-build-using-namespace)

static_assert(kVersion == 1, "write the layout of the new version down here");
static_assert(kMagic == 0x4c484454 && kMaxFrameBytes == 65536);
static_assert(kRoleWorker == 1 && kRoleAgent == 2);
static_assert(kAccepted == 0 && kRefused == 1 && kTaken == 2);
AT(Hello, magic, 0);
AT(Hello, version, 4);
AT(Hello, role, 6);
AT(Hello, rank, 8);
AT(Hello, local_rank, 12);
AT(Hello, pid, 16);
AT(Hello, disk_limit_mb, 20);
static_assert(sizeof(Hello) == 64);
AT(HelloReply, magic, 0);
AT(HelloReply, version, 4);
AT(HelloReply, status, 6);
AT(HelloReply, message, 8);
static_assert(sizeof(HelloReply) == 64);
static_assert(HashSocketPath("") == 0xcbf29ce484222325 && HashSocketPath("/a") == 0x07d66707b49cd92d);
}  // namespace hello_version_1

// The C API. A prototype that is here stays as it is; a struct that a caller allocates keeps its size.
#define HAS_TYPE(function, ...) \
  static_assert(std::is_same_v<decltype(&(function)), __VA_ARGS__>, #function " has changed")
HAS_TYPE(taskd_worker_init, int (*)(int, int, int));
HAS_TYPE(taskd_worker_start, int (*)());
HAS_TYPE(taskd_worker_destroy, int (*)());
HAS_TYPE(taskd_enabled_kinds, uint32_t (*)());
HAS_TYPE(taskd_mark, void (*)(const char*));
HAS_TYPE(taskd_range_start, uint64_t (*)(const char*));
HAS_TYPE(taskd_range_end, void (*)(uint64_t));
HAS_TYPE(taskd_domain_create, taskd_domain* (*)(const char*));
HAS_TYPE(taskd_domain_mark, void (*)(taskd_domain*, const char*));
HAS_TYPE(taskd_domain_range_start, uint64_t (*)(taskd_domain*, const char*));
HAS_TYPE(taskd_communication_begin, int (*)(int));
HAS_TYPE(taskd_communication_end, void (*)());
HAS_TYPE(taskd_nccl_plugin_speaks, void (*)());
HAS_TYPE(taskd_worker_get_stats, int (*)(taskd_worker_stats*));
static_assert(TASKD_KIND_STEP == 1 && TASKD_KIND_SAVE_CHECKPOINT == 2 && TASKD_KIND_FORWARD == 4);
static_assert(TASKD_KIND_DATALOADER == 8 && TASKD_KIND_COMMUNICATION == 16 && TASKD_KIND_OTHER == 32);
AT(taskd_worker_stats, rank, 0);
AT(taskd_worker_stats, attached, 4);
AT(taskd_worker_stats, kinds, 8);
AT(taskd_worker_stats, threads, 12);
AT(taskd_worker_stats, records, 16);
AT(taskd_worker_stats, dropped, 24);
static_assert(sizeof(taskd_worker_stats) == 32);

// The compiler has checked all of it.
TEST(Abi, IsWhatWasReleased) {}

}  // namespace
}  // namespace taskd::worker
