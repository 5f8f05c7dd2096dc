// Files that say where a job hangs, or that somebody says do: the first byte picks the reader.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "diagnosis/hang.h"
#include "readers/byte_source.h"
#include "readers/flight_recorder.h"
#include "readers/hang_tables.h"
#include "readers/nccl_ras.h"
#include "readers/pickle.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::diagnosis::Hang;
using taskd::diagnosis::HangFacts;
using taskd::readers::ByteSource;
using taskd::readers::FlightDump;
using taskd::readers::ValueTree;

// The same bytes, as a file.
ByteSource Open(const std::string& bytes) {
  static const taskd::UniqueFd file(memfd_create("fuzz", MFD_CLOEXEC));
  FUZZ_CHECK(ftruncate(file.get(), 0) == 0 &&
             pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  absl::StatusOr<ByteSource> source = ByteSource::Open(absl::StrCat("/proc/self/fd/", file.get()));
  FUZZ_CHECK(source.ok());
  return *std::move(source);
}

void Pickle(const std::string& bytes) {
  ValueTree tree;
  const std::string problem = taskd::readers::ReadPickle(bytes, tree);
  FUZZ_CHECK(!problem.empty() || tree.root() != ValueTree::Nothing());
  // What it was made of may stand in itself.
  size_t steps = 0;
  for (ValueTree::Id id = tree.root(); !tree.items(id).empty() && steps < 1000; id = tree.items(id).back()) ++steps;
}

void CheckHang(const std::optional<Hang>& hang) {
  if (!hang) return;
  FUZZ_CHECK(!hang->text.empty() && hang->text.size() < 8192);
  FUZZ_CHECK(hang->kind != "unknown" || hang->origins.empty());
  // Nobody is named and waits.
  for (int rank : hang->waiting) {
    FUZZ_CHECK(!std::binary_search(hang->origins.begin(), hang->origins.end(), rank));
  }
}

// The same dump, as it is and cut, of three ranks.
void Dump(const std::string& bytes) {
  taskd::readers::HangTables tables;
  taskd::readers::DumpMemory memory;
  std::map<int, taskd::diagnosis::HangRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ByteSource source = Open(bytes.substr(0, bytes.size() - bytes.size() * static_cast<size_t>(rank) / 5));
    FlightDump dump = taskd::readers::ReadFlightDump(source, tables, memory);
    FUZZ_CHECK(dump.known.ops.size() <= 1024 && dump.rank >= -1);
    ranks.emplace(rank, std::move(dump.known));
  }
  const HangFacts facts = tables.Take(std::move(ranks));
  for (const auto& [rank, known] : facts.ranks) {
    uint64_t before = 0;
    for (const taskd::diagnosis::HangOp& op : known.ops) {
      FUZZ_CHECK(op.group < facts.groups.size() && op.call < facts.calls.size() && op.order >= before);
      before = op.order;
    }
  }
  CheckHang(FindHang(facts));
}

void Ras(const std::string& bytes) {
  ByteSource source = Open(bytes);
  taskd::readers::RasAnswers answers = taskd::readers::ReadRasAnswers(source);
  FUZZ_CHECK(answers.states.size() <= 2 && answers.records >= answers.states.size());
  CheckHang(taskd::readers::JudgeRas(answers.states).hang);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 65536) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      Pickle(text);
      break;
    case 1:
    case 2:
      Dump(text);
      break;
    default:
      Ras(text);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  // {"version": "2.4", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}, "entries": [{"record_id": 0,
  // "process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 5,
  // "input_sizes": [[8, 2]], "input_dtypes": ["Float"], "state": "started"}, {"record_id": 1, …: "nccl:send 0->1"}]}
  using namespace std::literals;
  const std::string pickle =
      "\x80\x02}q\x00(X\x09\x00\x00\x00pg_configq\x01}q\x02X\x01\x00\x00\x00"
      "0q\x03}q\x04(X\x04\x00\x00\x00nameq\x05h\x03X\x04\x00\x00\x00"
      "descq\x06X\x0a\x00\x00\x00"
      "default_pgq\x07X\x05\x00\x00\x00ranksq\x08X\x09\x00\x00\x00[0, 1, 2]q\x09usX\x07\x00\x00\x00"
      "entriesq\x0a]q\x0b(}q\x0c(X\x09\x00\x00\x00record_idq\x0dK\x00X\x0d\x00\x00\x00process_"
      "groupq\x0eh\x03h\x07\x86q\x0f"
      "X\x11\x00\x00\x00"
      "collective_seq_idq\x10K\x01X\x0e\x00\x00\x00profiling_nameq\x11X\x0f\x00\x00\x00nccl:all_reduceX\x0f\x00\x00\x00"
      "time_created_nsq\x12K\x05X\x0b\x00\x00\x00input_sizesq\x13]q\x14]q\x15(K\x08K\x02"
      "eaX\x0c\x00\x00\x00input_dtypesq\x16]q\x17X\x05\x00\x00\x00"
      "FloataX\x05\x00\x00\x00stateq\x18X\x07\x00\x00\x00started"
      "u}(h\x0dK\x01h\x0eh\x0fh\x11X\x0e\x00\x00\x00nccl:send 0->1h\x18X\x09\x00\x00\x00scheduledueu."s;
  const std::string json =
      R"({"entries":[{"collective_seq_id":1,"input_dtypes":["Float"],"input_sizes":[[8,2]],"is_p2p":false,"op_id":1,)"
      R"("output_dtypes":["Float"],"output_sizes":[[8,2]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],)"
      R"("profiling_name":"nccl:all_reduce","record_id":0,"state":"started","time_created_ns":1767225600000000000},)"
      R"({"collective_seq_id":1,"is_p2p":true,"p2p_seq_id":1,"process_group":["0","default_pg"],"record_id":1,)"
      R"("profiling_name":"nccl:recv 0<-2","state":"scheduled"},{"collective_seq_id":1,"is_p2p":true,"p2p_seq_id":1,)"
      R"("process_group":["0","default_pg"],"record_id":2,"profiling_name":"nccl:coalesced","state":"started"}],)"
      R"("pg_config":{"0":{"desc":"default_pg","name":"0","ranks":"[0, 1, 2]"}},"pg_status":{},"version":"2.10"})";
  const std::string rank =
      R"({"rank":0,"host":"10.0.0.1","pid":5,"cuda_dev":0,"status":{"init_state":0,"async_error":0},)"
      R"("collective_counts":{"AllReduce":2,"AllGather":1}})";
  const std::string other = R"({"rank":1,"host":"10.0.0.1","pid":6,"cuda_dev":1,"status":{"async_error":6},)"
                            R"("collective_counts":{"AllReduce":1,"AllGather":1}})";
  const std::string missing = R"({"rank":2,"host":"unknown","pid":-1,"cuda_dev":2 "status":{"unresponsive":true}})";
  const auto answer = [&](const std::string& time) {
    return absl::StrCat(R"({"timestamp":")", time, R"(","communicators_count":1,"communicators":[{"hash":"0x1",)",
                        R"("secondary_hash":"0x2:0x3","size":3,"ranks":[)", rank, ",", other, R"(],"missing_ranks":[)",
                        missing, R"(]}],"ras":{"timeouts_count":0}})", "\n");
  };
  const std::string old_pickle =
      "(dp0\nVpg_config\np1\n(dp2\nV0\np3\n(dp4\nVname\np5\ng3\nsVranks\np6\nV[0, 1, "
      "2]\np7\nsssVentries\np8\n(lp9\n(dp10\n"
      "Vrecord_id\np11\nI0\nsVprocess_group\np12\n(g3\nVdefault_pg\np13\ntp14\nsVprofiling_name\np15\nVnccl:all_"
      "reduce\np16\n"
      "sVcollective_seq_id\np17\nL1L\nsVis_p2p\np18\nI00\nsVfraction\np19\nF1."
      "5\nsVstate\np20\nV\\u0073tarted\np21\nsas.";
  return {"0" + pickle,
          "1" + pickle,
          "0" + old_pickle,
          "1" + old_pickle,
          "2" + json,
          "3" + answer("a") + answer("b"),
          "0\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00]\x94"s + "."};
}
