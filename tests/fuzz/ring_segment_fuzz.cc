// A ring segment whose cursors and records are the fuzzer's: the reader may fault it, never read outside it or hang.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proxy/ring_segment.h"
#include "proxy/testing/fake_segment.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr size_t kControlBytes = 48;  // six words that overwrite what the writer and an earlier reader left

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kControlBytes || size > 64 * 1024) return 0;
  taskd::testing::FakeSegment fake;
  fake.AddRing();
  uint64_t control[6];
  memcpy(control, data, sizeof(control));
  fake.slot(0).reserved = control[0];
  fake.slot(0).head = control[1];
  fake.slot(0).consumed = control[2];
  fake.slot(0).data_offset = control[3];
  fake.header().slots = static_cast<uint32_t>(control[4]);
  fake.header().domains = static_cast<uint32_t>(control[5]);
  char* ring = reinterpret_cast<char*>(&fake.header()) + taskd::ring::kDataOffset;
  memcpy(ring, data + kControlBytes, size - kControlBytes);

  auto opened = taskd::proxy::RingSegment::Open(fake.Fd());
  if (!opened.ok()) return 0;
  taskd::proxy::RingSegment& segment = **opened;
  taskd::proxy::RingBatch batch;
  for (int round = 0; round < 4; ++round) {
    segment.Pending();
    segment.Read(UINT64_MAX, 64 * 1024, batch);
    FUZZ_CHECK(batch.records.empty() || !segment.faulted());
    for (const taskd::proxy::RingRecord& record : batch.records) {
      FUZZ_CHECK(record.name_offset * 8ull + record.name_bytes <= batch.words.size() * 8);
      FUZZ_CHECK(record.kind < taskd::ring::kKinds);
      FUZZ_CHECK(segment.DomainName(record.domain).size() < taskd::ring::kDomainNameBytes);
    }
    segment.StageCursors(batch);
    segment.CommitCursors(batch);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  taskd::testing::FakeSegment fake;
  fake.AddRing();
  for (uint64_t i = 1; i <= 20; ++i) {
    fake.Append(0, {taskd::ring::kRecordRangeStart, i, i, std::string(i * 3, 'n'), taskd::ring::kKindStep});
    fake.Append(0, {taskd::ring::kRecordRangeEnd, i, i});
    fake.Append(0, {taskd::ring::kRecordMark, i, i, std::string(i, 's'), taskd::ring::kKindOther,
                    taskd::ring::kFlagSource | taskd::ring::kFlagStream, 0, 1, i, 1, 2});
  }
  uint64_t control[6] = {fake.slot(0).reserved, fake.slot(0).head, 0, fake.slot(0).data_offset, 1, 2};
  std::string seed(reinterpret_cast<const char*>(control), sizeof(control));
  seed.append(reinterpret_cast<const char*>(fake.data(0)), fake.slot(0).head);
  return {seed, seed.substr(0, kControlBytes + 40)};
}
