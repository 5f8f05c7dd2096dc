// Any records in any order, and any text as a mark file's line, give folds that keep their promises, and no crash.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "marks/comm_name.h"
#include "marks/mark_file_reader.h"
#include "marks/mark_fold.h"
#include "marks/parallel_group.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::MarkFold;
using taskd::MarkRecord;
using taskd::StepFold;

void Check(const StepFold& fold, const MarkFold& marks) {
  FUZZ_CHECK(fold.start_ns <= fold.end_ns);
  FUZZ_CHECK(fold.previous_end_ns == 0 || fold.previous_end_ns < fold.end_ns);
  FUZZ_CHECK(fold.ops.size() <= StepFold::kMaxOps && fold.samples.size() <= StepFold::kMaxSamples);
  const uint64_t begin_ns = fold.previous_end_ns != 0 ? fold.previous_end_ns : fold.start_ns;
  const uint64_t period_ns = fold.end_ns - begin_ns;
  FUZZ_CHECK(fold.covered_ns <= period_ns && fold.blocking_covered_ns <= fold.covered_ns);
  FUZZ_CHECK(fold.covered_before_last_ns <= fold.covered_ns);
  FUZZ_CHECK(fold.covered_ns + fold.head_ns + fold.lead_ns + fold.tail_ns <= period_ns);
  FUZZ_CHECK(fold.dataloader_own_ns <= fold.dataloader_ns && fold.checkpoint_own_ns <= fold.checkpoint_ns);
  for (const taskd::OpFold& op : fold.ops) {
    FUZZ_CHECK(op.group < marks.groups().size() && static_cast<int>(op.op) < taskd::kCommOps && op.peer >= -1);
    FUZZ_CHECK(op.count > 0 && op.min_duration_ns <= op.duration_ns && op.first_start_ns <= op.last_end_ns);
    FUZZ_CHECK(op.last_end_ns <= fold.end_ns && op.last_end_ns >= begin_ns);
    FUZZ_CHECK(op.max_gap_ns <= op.gap_ns && op.gap_ns <= period_ns && (op.gaps == 0) == (op.gap_ns == 0));
    FUZZ_CHECK((op.blocking_gaps == 0) == (op.blocking_gap_ns == 0));
  }
  for (const taskd::OpSample& sample : fold.samples) {
    FUZZ_CHECK(sample.group < marks.groups().size() && sample.start_ns <= sample.end_ns);
  }
}

constexpr const char* kNames[] = {
    "step 1",
    "step 2",
    "step 2",
    "forward",
    "dataloader",
    "save_checkpoint",
    "step -3",
    "step x",
    "",
    R"({"groupName": "a","opName": "HcclSend","destRank": "1","count": "8","dataType": "fp32"})",
    R"({"groupName": "a","opName": "HcclRecv","srcRank": "1"})",
    R"({\"groupName\": \"b\",\"opName\": \"HcclAllreduce\",\"count\": \"9223372036854775807\",\"dataType\": \"fp64\"})",
    R"({"groupName": "c","opName": "HcclReduceScatter"})",
    R"({"groupName": "cut)"};

// Eight bytes a record: few ids and small steps of time, so that records meet.
void FoldRecords(const uint8_t* data, size_t size) {
  MarkFold* self = nullptr;
  MarkFold marks([&](StepFold&& fold) { Check(fold, *self); });
  self = &marks;
  uint64_t time_ns = 1'700'000'000'000'000'000;
  std::string varied;
  for (; size >= 8; data += 8, size -= 8) {
    if (data[0] == 255) {
      marks.Lost(data[1]);
      continue;
    }
    if (data[0] == 254) {
      marks.SetGroups({{data[1] % 2 == 0 ? "a" : "b", data[2] % 2 == 0 ? "tp" : "dp", {{0, 1, data[3]}}}});
      continue;
    }
    MarkRecord record;
    record.phase = static_cast<MarkRecord::Phase>(data[0] % 8 < 7 ? 1 + data[0] % 2 : 0);
    record.device = (data[0] & 16) != 0;
    time_ns += data[1] % 128;
    if (data[1] == 255) time_ns -= uint64_t{data[2]} << (data[3] % 56);
    record.time_ns = data[1] >= 200 ? time_ns - data[2] : time_ns;
    record.id = data[3] % 32;
    record.process_id = data[4] < 250 ? 1 : data[4];
    record.thread_id = data[5] % 2;
    record.name = kNames[data[6] % std::size(kNames)];
    record.domain = record.name.starts_with('{') ? "communication" : "default";
    if (data[7] == 1) record.domain = "communication";
    if (data[7] == 2) record.domain = "";
    if (data[7] > 250) {  // more groups, kinds and peers than a fold has room for
      varied = R"({"groupName": "g)" + std::to_string(data[5]) + R"(","opName": "HcclSend","destRank": ")" +
               std::to_string(data[6]) + "\"}";
      record.name = varied;
      record.domain = "communication";
    }
    marks.Add(record);
  }
  marks.Finish();
  marks.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 65536) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string storage;
  switch (data[0] % 4) {
    case 0:
      if (std::optional<MarkRecord> record = taskd::ParseMarkRecord(text, storage)) {
        FUZZ_CHECK(record->name.size() + record->domain.size() <= text.size() * 3);
      }
      break;
    case 1: {
      taskd::CommName name;
      if (taskd::ParseCommName(text, storage, name)) {
        FUZZ_CHECK(name.peer >= -1 && static_cast<int>(name.op) < taskd::kCommOps);
        FUZZ_CHECK(name.group.size() <= text.size() * 3);
      }
      break;
    }
    case 2:
      if (absl::StatusOr<std::vector<taskd::GroupInfo>> groups = taskd::ParseParallelGroups(text); groups.ok()) {
        for (const taskd::GroupInfo& group : *groups) taskd::ExpandMembers(group.members, 1000);
      }
      break;
    default:
      FoldRecords(data + 1, size - 1);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds = {
      // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): lines of more than one literal
      R"(0{"Kind":1,"Flag":16,"SourceKind":1,"Timestamp":1,"Id":7,"MsptiObjectId":{"Pt":{"ProcessId":1,"ThreadId":4},)"
      R"("Ds":{"DeviceId":1,"StreamId":4}},"Name":"st\u00e4p \"1","Domain":"default"})",
      R"(0{"Name": "step 1", "Kind": 1, "Flag": 2, "Timestamp": 1, "Id": 7, "Domain": "default", "MsptiObjectId": )"
      R"({"Pt": {"ProcessId": 1, "ThreadId": 4}}})",
      R"(1{\"groupName\": \"a\\\"b\",\"opName\": \"HcclAllreduce\",\"count\": \"7\",\"dataType\": \"fp32\"})",
      R"(1{"groupName": "a\"b","opName": "HcclRecv","srcRank": "3"})",
      R"(2{"a": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1, 2]}})"};
  // Random records from a fixed source, some of them with device records.
  uint64_t state = 88172645463325252;
  for (int seed = 0; seed < 12; ++seed) {
    std::string records = "3";
    for (int i = 0; i < 8 * 200; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      auto byte = static_cast<uint8_t>(state >> 32);
      if (seed % 2 == 0 && i % 8 == 0) byte &= 239;
      records += static_cast<char>(byte);
    }
    seeds.push_back(std::move(records));
  }
  return seeds;
}
