// What a mark leaves in the ring: names, kinds, flags, ids, times, blocks.
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

#include "clock.h"
#include "mstx_api.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

FRESH_TEST(RecordTest, FirstMarkIsRecorded) {
  mstxMarkA("step 17", nullptr);
  SegmentView segment;
  std::string problem;
  std::vector<Record> records = segment.Records(&problem);
  EXPECT_EQ(problem, "");
  ASSERT_EQ(records.size(), 1u);
  const Record& record = records[0];
  EXPECT_EQ(record.name, "step 17");
  EXPECT_EQ(record.type, ring::kRecordMark);
  EXPECT_EQ(record.tid, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(record.sequence, 0u);
  EXPECT_EQ(record.domain, ring::kDomainDefault);
  EXPECT_EQ(record.kind, ring::kKindStep);
  EXPECT_EQ(record.flags, ring::kFlagUndecided);
  EXPECT_NE(record.id, 0u);
  EXPECT_LT(record.id, uint64_t{1} << 53);
  const ring::SegmentHeader& header = segment.header();
  EXPECT_EQ(header.magic, ring::kMagic);
  EXPECT_EQ(header.version, ring::kVersion);
  EXPECT_EQ(header.header_bytes, sizeof(ring::SegmentHeader));
  EXPECT_EQ(header.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(header.rank.load(), -1);
  EXPECT_EQ(header.gate.load(), ring::kGateAllKinds | ring::kGateUndecided);
  EXPECT_STREQ(header.domain_names[ring::kDomainDefault], "default");
  EXPECT_STREQ(header.domain_names[ring::kDomainCommunication], "communication");
}

// Between two readings of the clock, in the unit that the header names.
FRESH_TEST(RecordTest, TicksAreOfTheHeadersClock) {
  taskd_mark("first");
  SegmentView segment;
  const bool counter = segment.header().clock == ring::kClockCounter;
  auto now = [&] { return counter ? worker::ReadCounter() : worker::ReadClockNs(CLOCK_MONOTONIC); };
  const uint64_t before = now();
  taskd_mark("second");
  const uint64_t after = now();
  EXPECT_LE(before, segment.Last().ticks);
  EXPECT_GE(after, segment.Last().ticks);
  EXPECT_LE(segment.header().start_ticks, before);
  EXPECT_LE(segment.header().start_monotonic_ns, worker::ReadClockNs(CLOCK_MONOTONIC));
  EXPECT_LE(segment.header().start_realtime_ns, worker::ReadClockNs(CLOCK_REALTIME));
}

FRESH_TEST(RecordTest, WorkInARangesMessageIsAMarkOfItsOwn) {
  const uint64_t step = mstxRangeStartA("step 17 {\"work\": 4096}", nullptr);
  const uint64_t forward = taskd_range_start("forward {\"work\":12.5}");
  EXPECT_NE(step, 0u);
  EXPECT_NE(forward, 0u);
  SegmentView segment;
  std::string problem;
  const std::vector<Record> records = segment.Records(&problem);
  EXPECT_EQ(problem, "");
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].name, "step 17");
  EXPECT_EQ(records[0].kind, ring::kKindStep);
  EXPECT_EQ(records[0].type, ring::kRecordRangeStart);
  EXPECT_EQ(records[0].id, step);
  EXPECT_EQ(records[1].name, "{\"work\": 4096}");
  EXPECT_EQ(records[1].kind, ring::kKindOther);
  EXPECT_EQ(records[1].type, ring::kRecordMark);
  EXPECT_EQ(records[2].name, "forward");
  EXPECT_EQ(records[2].kind, ring::kKindForward);
  EXPECT_EQ(records[2].id, forward);
  EXPECT_EQ(records[3].name, "{\"work\":12.5}");
}

FRESH_TEST(RecordTest, WhatIsNoWorkStaysAsItIs) {
  taskd_mark("first");
  SegmentView segment;
  for (const char* name :
       {"step 1 ", "step 1 {", "step 1 {\"wor", "step  {\"work\": 5}", "step {\"work\": 5}", "step 1{\"work\": 5}",
        "forward {}", "forward {\"worker\": 5}", "step 1234567890123456789012345678901234567890 {\"work\": 5}"}) {
    taskd_range_start(name);
    EXPECT_EQ(segment.Last().name, name);
  }
  taskd_mark("forward {\"work\": 5}");
  EXPECT_EQ(segment.Last().name, "forward {\"work\": 5}") << "an instant is no range";
  taskd_domain_range_start(taskd_domain_create("mine"), "forward {\"work\": 5}");
  EXPECT_EQ(segment.Last().name, "forward {\"work\": 5}") << "another domain's ranges are none of the kinds";
}

FRESH_TEST(RecordTest, NamesOfEveryLength) {
  taskd_mark("first");
  SegmentView segment;
  for (size_t bytes : {0, 1, 6, 7, 8, 9, 15, 16, 17, 247, 248, 249, 252, 253, 254, 255, 256, 257, 10000}) {
    const std::string name(bytes, 'x');
    for (int round = 0; round < 2; ++round) {  // the second one may come from a template
      taskd_mark(name.c_str());
      const Record record = segment.Last();
      EXPECT_EQ(record.name, name.substr(0, ring::kMaxNameBytes)) << bytes;
      EXPECT_EQ((record.flags & ring::kFlagTruncated) != 0, bytes > ring::kMaxNameBytes) << bytes;
    }
  }
  std::string problem;
  segment.Records(&problem);
  EXPECT_EQ(problem, "");
}

// The byte after the NUL cannot be read.
FRESH_TEST(RecordTest, NamesAtTheEndOfMemory) {
  taskd_mark("first");
  SegmentView segment;
  const long page = sysconf(_SC_PAGESIZE);
  char* memory =
      static_cast<char*>(mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + 2 * page, page, PROT_NONE), 0);
  taskd_domain* domain = taskd_domain_create("d");
  for (size_t bytes = 0; bytes < 300; ++bytes) {
    std::string name;
    for (size_t i = 0; i < bytes; ++i) name += static_cast<char>('a' + i % 26);
    char* at = memory + 2 * page - bytes - 1;
    memcpy(at, name.c_str(), bytes + 1);
    for (int round = 0; round < 2; ++round) {
      taskd_mark(at);
      EXPECT_EQ(segment.Last().name, name.substr(0, ring::kMaxNameBytes)) << bytes;
      taskd_domain_mark(domain, at);
      EXPECT_EQ(segment.Last().name, name.substr(0, ring::kMaxNameBytes)) << bytes;
    }
  }
}

// A name that changes where it stands, also behind the NUL: templates know a name by its bytes.
FRESH_TEST(RecordTest, ReusedMemory) {
  char name[16] = "step 1";
  mstxMarkA(name, nullptr);
  SegmentView segment;
  for (int round = 0; round < 3; ++round) {
    strcpy(name, "step 1");
    mstxMarkA(name, nullptr);
    EXPECT_EQ(segment.Last().name, "step 1");
    name[7] = 'z';
    mstxMarkA(name, nullptr);
    EXPECT_EQ(segment.Last().name, "step 1");
    strcpy(name, "step x");
    mstxMarkA(name, nullptr);
    EXPECT_EQ(segment.Last().name, "step x");
    EXPECT_EQ(segment.Last().kind, ring::kKindOther);
    strcpy(name, "step 1234567");
    mstxMarkA(name, nullptr);
    EXPECT_EQ(segment.Last().name, "step 1234567");
    EXPECT_EQ(segment.Last().kind, ring::kKindStep);
    strcpy(name, "");
    mstxMarkA(name, nullptr);
    EXPECT_EQ(segment.Last().name, "");
  }
}

FRESH_TEST(RecordTest, KindsByName) {
  taskd_mark("first");
  SegmentView segment;
  const struct {
    const char* name;
    ring::Kind kind;
  } cases[] = {
      {"step 0", ring::kKindStep},
      {"step 17", ring::kKindStep},
      {"step 173", ring::kKindStep},
      {"step 1734", ring::kKindStep},
      {"step 12345678901234567890", ring::kKindStep},
      {"step", ring::kKindOther},
      {"step ", ring::kKindOther},
      {"step x", ring::kKindOther},
      {"step 1x", ring::kKindOther},
      {"step 12x", ring::kKindOther},
      {"step 123x", ring::kKindOther},
      {"step 1234x", ring::kKindOther},
      {"step :", ring::kKindOther},
      {"step /", ring::kKindOther},
      {"step \xba\xba", ring::kKindOther},
      {"step \xff", ring::kKindOther},
      {"step -1", ring::kKindOther},
      {"steps 1", ring::kKindOther},
      {"Step 1", ring::kKindOther},
      {"forward", ring::kKindForward},
      {"forwar", ring::kKindOther},
      {"forward ", ring::kKindOther},
      {"forwards", ring::kKindOther},
      {"dataloader", ring::kKindDataLoader},
      {"dataload", ring::kKindOther},
      {"dataloade", ring::kKindOther},
      {"dataloaders", ring::kKindOther},
      {"save_checkpoint", ring::kKindSaveCheckpoint},
      {"save_checkpoin", ring::kKindOther},
      {"save_checkpoints", ring::kKindOther},
      {"save_che", ring::kKindOther},
      {"", ring::kKindOther},
  };
  taskd_domain* communication = taskd_domain_create("communication");
  taskd_domain* user = taskd_domain_create("user");
  for (const auto& test : cases) {
    taskd_mark(test.name);
    EXPECT_EQ(segment.Last().kind, test.kind) << test.name;
    taskd_domain_mark(user, test.name);
    EXPECT_EQ(segment.Last().kind, test.kind) << test.name;
    taskd_domain_mark(communication, test.name);
    EXPECT_EQ(segment.Last().kind, ring::kKindCommunication) << test.name;
  }
}

FRESH_TEST(RecordTest, EachKindIsGatedByItsBit) {
  taskd_mark("first");
  SegmentView segment;
  taskd_domain* communication = taskd_domain_create("communication");
  const char* names[ring::kKinds] = {"step 1", "save_checkpoint", "forward", "dataloader", "{}", "anything"};
  for (uint32_t open = 0; open <= ring::kGateAllKinds; ++open) {
    segment.SetGate(open);
    EXPECT_EQ(taskd_enabled_kinds(), open);
    for (uint32_t kind = 0; kind < ring::kKinds; ++kind) {
      taskd_domain* domain = kind == ring::kKindCommunication ? communication : nullptr;
      const uint64_t id = kind == ring::kKindCommunication ? taskd_domain_range_start(domain, names[kind])
                                                           : taskd_range_start(names[kind]);
      if ((open >> kind & 1) != 0) {
        ASSERT_NE(id, 0u) << kind;
        EXPECT_EQ(segment.Last().id, id);
        EXPECT_EQ(segment.Last().kind, kind);
        EXPECT_EQ(segment.Last().flags, 0u);
      } else {
        EXPECT_EQ(id, 0u) << kind;
      }
    }
  }
}

FRESH_TEST(RecordTest, FlagsOfStreamAndUndecided) {
  void* stream = reinterpret_cast<void*>(uintptr_t{0xdead});
  mstxMarkA("step 1", stream);
  SegmentView segment;
  EXPECT_EQ(segment.Last().flags, ring::kFlagStream | ring::kFlagUndecided);
  segment.SetGate(ring::kGateAllKinds);
  for (const char* name : {"step 1", "a longer name"}) {
    for (int round = 0; round < 3; ++round) {
      mstxMarkA(name, stream);
      EXPECT_EQ(segment.Last().flags, ring::kFlagStream);
      mstxMarkA(name, nullptr);
      EXPECT_EQ(segment.Last().flags, 0u);
      mstxRangeStartA(name, stream);
      EXPECT_EQ(segment.Last().flags, ring::kFlagStream);
      EXPECT_EQ(segment.Last().type, ring::kRecordRangeStart);
    }
  }
  segment.SetGate(ring::kGateAllKinds | ring::kGateUndecided);
  mstxMarkA("step 1", nullptr);
  EXPECT_EQ(segment.Last().flags, ring::kFlagUndecided);
}

FRESH_TEST(RecordTest, RangeEndIsRecordedWhateverTheGateSays) {
  const uint64_t id = taskd_range_start("step 1");
  ASSERT_NE(id, 0u);
  SegmentView segment;
  segment.SetGate(0);
  EXPECT_EQ(taskd_range_start("step 2"), 0u);
  taskd_range_end(id);
  const Record end = segment.Last();
  EXPECT_EQ(end.type, ring::kRecordRangeEnd);
  EXPECT_EQ(end.id, id);
  EXPECT_EQ(end.name, "");
  const size_t count = segment.Records().size();
  taskd_range_end(0);
  taskd_range_end(uint64_t{1} << 53);
  taskd_range_end(UINT64_MAX);
  EXPECT_EQ(segment.Records().size(), count);
  mstxDomainRangeEnd(nullptr, id);
  EXPECT_EQ(segment.Last().id, id);
}

FRESH_TEST(RecordTest, NullNamesAreIgnored) {
  taskd_mark(nullptr);
  EXPECT_EQ(taskd_range_start(nullptr), 0u);
  taskd_mark("first");
  SegmentView segment;
  taskd_mark(nullptr);
  mstxMarkA(nullptr, &segment);
  EXPECT_EQ(taskd_range_start(nullptr), 0u);
  EXPECT_EQ(taskd_domain_range_start(taskd_domain_create("d"), nullptr), 0u);
  EXPECT_EQ(segment.Records().size(), 1u);
}

FRESH_TEST(RecordTest, ErrnoIsKept) {
  errno = 4711;
  taskd_mark("first");
  taskd_worker_init(0, 0, 0);
  for (int i = 0; i < 5000; ++i) taskd_mark("step 17");
  taskd_domain_create("new");
  taskd_worker_destroy();
  EXPECT_EQ(errno, 4711);
}

// Laps the ring twice: at any time what is at or above reserved - size is whole, in order and without a gap.
FRESH_TEST(RecordTest, OverwritesTheOldest) {
  taskd_mark("first");
  SegmentView segment;
  const ring::ThreadSlot& slot = segment.header().thread_slots[0];
  EXPECT_EQ(slot.data_bytes, ring::kLargeRingBytes);
  std::set<uint64_t> ids;
  uint32_t made = 1;
  for (int part = 0; part < 40; ++part) {
    for (int i = 0; i < 4000; ++i, ++made) {
      const std::string name(i * 7 % 260, 'n');
      if (i % 3 == 0) {
        const uint64_t id = taskd_range_start(name.c_str());
        EXPECT_TRUE(ids.insert(id).second);
        taskd_range_end(id);
        ++made;
      } else {
        taskd_mark("step 1");
      }
    }
    std::string problem;
    const std::vector<Record> records = segment.Records(&problem);
    ASSERT_EQ(problem, "");
    ASSERT_FALSE(records.empty());
    EXPECT_EQ(records.back().sequence, made - 1);
    std::set<uint64_t> seen;
    for (size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(records[i].sequence, records[0].sequence + i);
      if (i > 0) {
        ASSERT_GE(records[i].ticks, records[i - 1].ticks);
      }
      if (records[i].type != ring::kRecordRangeEnd) {
        ASSERT_TRUE(seen.insert(records[i].id).second);
      }
    }
  }
  EXPECT_GT(slot.head.load(), 2 * slot.data_bytes);
  EXPECT_GT(slot.cost_samples.load(), 100u);
  EXPECT_GT(slot.cost_ticks.load(), 0u);
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.records, made);
  EXPECT_EQ(stats.dropped, 0u);
  EXPECT_EQ(stats.threads, 1u);
}

}  // namespace
}  // namespace taskd::worker
