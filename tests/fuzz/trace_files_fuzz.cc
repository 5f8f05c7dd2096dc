// Files that other tools wrote, or that somebody says they did: the first byte picks the reader.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "diagnosis/rank_place.h"
#include "readers/byte_source.h"
#include "readers/kineto_trace.h"
#include "readers/source_files.h"
#include "readers/trace_fold.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::readers::ByteSource;
using taskd::readers::FoldedTrace;
using taskd::readers::TraceRank;

constexpr size_t kMaxEvents = 4096;

// The same bytes, as a file.
class File {
 public:
  File() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) { FUZZ_CHECK(fd_.valid()); }
  void Write(const std::string& bytes) {
    FUZZ_CHECK(ftruncate(fd_.get(), 0) == 0 &&
               pwrite(fd_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_.get()); }

 private:
  taskd::UniqueFd fd_;
};

void Trace(const std::string& bytes) {
  static File file;
  file.Write(bytes);
  absl::StatusOr<ByteSource> source = ByteSource::Open(file.path());
  FUZZ_CHECK(source.ok());
  TraceRank trace = taskd::readers::ReadKinetoTrace(*source, kMaxEvents);
  FUZZ_CHECK(trace.events.size() <= kMaxEvents && trace.rank >= -1);
  for (const auto& event : trace.events) FUZZ_CHECK(event.start_ns <= event.end_ns);
  FoldedTrace folded = taskd::readers::FoldTrace(std::move(trace));
  uint64_t before = 0;
  for (const taskd::StepFold& fold : folded.folds) {
    FUZZ_CHECK(fold.end_ns > before && fold.step >= 0);
    before = fold.end_ns;
    for (const taskd::OpFold& op : fold.ops) FUZZ_CHECK(op.group < folded.groups.size());
    for (const taskd::OpSample& sample : fold.samples) FUZZ_CHECK(sample.group < folded.groups.size());
  }
  const std::vector<int64_t> offsets = taskd::readers::ClockOffsetsOf({&folded, &folded});
  FUZZ_CHECK(offsets.size() == 2 && offsets[0] == 0 && offsets[1] == 0);
}

void Names(const std::string& text) {
  FUZZ_CHECK(taskd::readers::RankOfPath(text) >= -1);
  FUZZ_CHECK(taskd::readers::RankOfPath(text) < taskd::diagnosis::kMaxRanks);
  FUZZ_CHECK(taskd::readers::HostOfPath(text).size() <= text.size());
  taskd::readers::FormatOf(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 65536) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    Names(text);
  } else {
    Trace(text);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const std::string event =
      R"({"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","ts":5.25,"dur":2,"args":)"
      R"({"Collective name":"allreduce","In msg nelems":8,"dtype":"Float","Process Group Name":"0",)"
      R"("Process Group Description":"default_pg","Process Group Ranks":"[0, 1]","stream":7}})";
  const std::string step = R"({"ph":"X","cat":"user_annotation","name":"ProfilerStep#7","ts":1,"dur":9})";
  const std::string next = R"({"ph":"X","cat":"user_annotation","name":"ProfilerStep#8","ts":11,"dur":9.5})";
  return {
      absl::StrCat(R"(1{"distributedInfo":{"rank":1,"world_size":2,"pg_config":[{"pg_name":"0","pg_desc":"mesh_tp",)",
                   R"("ranks":[0,1]}]},"baseTimeNanoseconds":1767225600000000000,"traceEvents":[)", step, ",", event,
                   ",", next, "]}"),
      absl::StrCat("1[", step, ",", R"({"ph":"X","name":"gloo:all_reduce","ts":3,"dur":1},)", next, "]"),
      R"(1[{"ph":"X","name":"Optimizer.step#SGD.step","ts":3,"dur":1},{"ph":"X","name":"record_param_comms","ts":4,"dur":1,)"
      R"("args":{"Collective name":"send","Dst Rank":1}},{"ph":"X","name":"Optimizer.step#SGD.step","ts":9e0,"dur":1}])",
      R"(1[{"ph":"X","name":"step 1","ts":1767225600000000000,"dur":5},{"ph":"X","name":"DistributedDataParallel.forward",)"
      R"("ts":1767225600000000001,"dur":2},{"ph":"X","name":"enumerate(DataLoader)#x","ts":1767225600000000003,"dur":1}])",
      std::string("1\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x8b\x8e\x05\x00\x29\xbb\x4c\x0d\x02\x00\x00\x00", 24),
      "0/traces/rank_12/node-a_4000.1767225600000.pt.trace.json.gz"};
}
