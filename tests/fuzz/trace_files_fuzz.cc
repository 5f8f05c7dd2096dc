// Files that other tools wrote, or that somebody says they did: the first byte picks the reader.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "diagnosis/rank_place.h"
#include "readers/ascend_folder.h"
#include "readers/ascend_profile.h"
#include "readers/byte_source.h"
#include "readers/kineto_trace.h"
#include "readers/named_ranks.h"
#include "readers/nccl_inspector.h"
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

ByteSource Open(const std::string& bytes) {
  static File file;
  file.Write(bytes);
  absl::StatusOr<ByteSource> source = ByteSource::Open(file.path());
  FUZZ_CHECK(source.ok());
  return *std::move(source);
}

void Fold(TraceRank&& trace) {
  FUZZ_CHECK(trace.rank >= -1);
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

void Trace(const std::string& bytes) {
  ByteSource source = Open(bytes);
  TraceRank trace = taskd::readers::ReadKinetoTrace(source, kMaxEvents);
  FUZZ_CHECK(trace.events.size() <= kMaxEvents);
  Fold(std::move(trace));
}

void Ascend(const std::string& bytes) {
  ByteSource source = Open(bytes);
  taskd::readers::AscendProfile profile(kMaxEvents);
  profile.Read(source);
  TraceRank trace = profile.Take();
  ByteSource metadata = Open(bytes);
  taskd::readers::AscendRank rank;
  taskd::readers::ReadAscendMetadata(metadata, rank);
  FUZZ_CHECK(rank.world_size >= 0 && rank.groups.size() <= taskd::readers::kMaxGroups);
  taskd::readers::NameAscendGroups(rank.groups, trace.groups);
  Fold(std::move(trace));
}

void Inspector(const std::string& bytes) {
  ByteSource source = Open(bytes);
  taskd::readers::InspectorProcess process = taskd::readers::ReadNcclInspector(source);
  taskd::readers::InspectorProcess other = process;
  const taskd::readers::InspectorJob job = taskd::readers::FoldInspector({&process, &other});
  FUZZ_CHECK(job.ranks.size() == 2);
  for (const auto& rank : job.ranks) {
    uint64_t before = 0;
    for (const taskd::StepFold& fold : rank.folded.folds) {
      FUZZ_CHECK(fold.start_ns >= before && fold.end_ns > fold.start_ns && fold.ops.size() <= taskd::StepFold::kMaxOps);
      before = fold.end_ns;
      for (const taskd::OpFold& op : fold.ops) {
        FUZZ_CHECK(op.group < rank.folded.groups.size() && op.count > 0 && op.min_duration_ns > 0);
      }
    }
  }
}

void Names(const std::string& text) {
  for (int rank : taskd::readers::RanksOfPaths({text, text + "1", text.substr(text.size() / 2)})) {
    FUZZ_CHECK(rank >= -1 && rank < taskd::diagnosis::kMaxRanks);
  }
  FUZZ_CHECK(taskd::readers::HostOfPath(text).size() <= text.size());
  taskd::readers::FormatOf(text);
  taskd::readers::JoinAscendFolders({{text, 1, {}}});
  if (const auto name = taskd::readers::ReadHcomName(text))
    FUZZ_CHECK(name->op.size() + name->group.size() < text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 65536) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      Names(text);
      break;
    case 2:
      Ascend(text);
      break;
    case 3:
      Inspector(text);
      break;
    default:
      Trace(text);
      break;
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
      absl::StrCat(
          R"(1[{"ph":"X","name":"Optimizer.step#SGD.step","ts":3,"dur":1},{"ph":"X","name":"record_param_comms","ts":4,"dur":1,)",
          R"("args":{"Collective name":"send","Dst Rank":1}},{"ph":"X","name":"Optimizer.step#SGD.step","ts":9e0,"dur":1}])"),
      absl::StrCat(
          R"(1[{"ph":"X","name":"step 1","ts":1767225600000000000,"dur":5},{"ph":"X","name":"DistributedDataParallel.forward",)",
          R"("ts":1767225600000000001,"dur":2},{"ph":"X","name":"enumerate(DataLoader)#x","ts":1767225600000000003,"dur":1}])"),
      std::string("1\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x8b\x8e\x05\x00\x29\xbb\x4c\x0d\x02\x00\x00\x00", 23),
      R"x(2{"step3":{"p2p":{},"collective":{"hcom_allReduce__844_0_1@13681369207305868844":{"Communication Time Info":)x"
      R"x({"Start Timestamp(us)":1767225600000000.5,"Elapse Time(ms)":2.5},"Communication Bandwidth Info":{"RDMA":)x"
      R"x({"Transit Size(MB)":64},"SDMA":{"Transit Size(MB)":1}}},"hcom_send__844_1_1@7":{"Communication Time Info":)x"
      R"x({"Start Timestamp(us)":"1767225600005000","Elapse Time(ms)":1}},"Total Op Info":{}}},"step4":{"collective":)x"
      R"x({"hcom_allGather__1_2_1":{"Communication Time Info":{"Start Timestamp(us)":1767225600015000.5,)x"
      R"x("Elapse Time(ms)":2}}}}})x",
      absl::StrCat("2Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Preparing\n",
                   "0,3,50000.5,4000,10000,14000,5000,100\n0,4,5e4,4000,10000,14000,5000,100\n",
                   "1,3,1,1,1,1,1,1\n0,,1,1,1,1,1,1\n"),
      absl::StrCat(
          R"(2{"parallel_group_info":{"10.0.0.1%eth0_1":{"group_name":"dp","group_rank":0,"global_ranks":[0,2,4,-1]},)",
          R"("b":{"group_name":"default_group","global_ranks":[0,1,2,3]}}})"),
      R"(3{"header":{"id":"0x7f","rank":0,"n_ranks":2,"nnodes":1},"metadata":{"hostname":"a","pid":7,"dump_timestamp_us":)"
      R"(1748030377748202},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,)"
      R"("coll_exec_time_us":61974.5}})"
      "\n"
      R"({"header":{"id":"0x7f","rank":1,"n_ranks":2},"metadata":{"inspector_output_format_version":"v4.3","hostname":"a",)"
      R"("pid":7},"dump_stats":{"coll_records":1}})"
      "\n"
      R"({"coll_perf":{"coll":"AllGather","coll_sn":3,"coll_msg_size_bytes":8192,"coll_exec_time_us":5}})"
      "\n"
      R"({"p2p_perf":{"p2p":"Send","p2p_sn":1,"p2p_peer":1,"p2p_msg_size_bytes":65536,"p2p_exec_time_us":9}})",
      "0/traces/node_4_5_ascend_pt/ASCEND_PROFILER_OUTPUT/communication.json",
      "0/traces/rank_12/node-a_4000.1767225600000.pt.trace.json.gz"};
}
