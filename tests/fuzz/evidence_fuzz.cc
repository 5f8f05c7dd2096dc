// What other launchers have found of a hang: facts of dumps, which are judged together with those of this node.
#include "agent/evidence/node_evidence.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::diagnosis::HangFacts;
using taskd::diagnosis::HangOp;
using taskd::evidence::NodeEvidence;

void CheckFacts(const HangFacts& facts) {
  for (const auto& [rank, known] : facts.ranks) {
    uint64_t before = 0;
    for (const HangOp& op : known.ops) {
      FUZZ_CHECK(op.group < facts.groups.size() && op.call < facts.calls.size() && op.order >= before);
      before = op.order;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 65536) return 0;
  const std::string text(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<NodeEvidence> evidence = taskd::evidence::DecodeEvidence(text);
  if (!evidence.ok()) {
    FUZZ_CHECK(!evidence.status().message().empty());
    return 0;
  }
  CheckFacts(evidence->facts);
  // What is written is read again.
  const std::string again = taskd::evidence::EncodeEvidence(*evidence, size_t{64} << 20);
  absl::StatusOr<NodeEvidence> read = taskd::evidence::DecodeEvidence(again);
  if (read.ok()) FUZZ_CHECK(taskd::evidence::EncodeEvidence(*read, size_t{64} << 20) == again);
  taskd::evidence::EvidenceBook book;
  book.Add(*evidence);
  evidence->first_rank = evidence->first_rank == 0 ? 1 : 0;
  book.Add(*std::move(evidence));
  const taskd::evidence::Finding finding = book.Judge();
  FUZZ_CHECK(finding.sources.size() <= taskd::evidence::Finding::kMaxSources);
  FUZZ_CHECK(!TextOf(finding).empty());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"first_rank":0,"facts":{"groups":[["default_pg,0",[0,2]],["odd",[2,2,0,0]]],"calls":[["all_reduce","Float","8","8","f a.py:1"]],)"
      R"("ranks":[{"rank":0,"cut":false,"partial":false,"ops":[[0,0,1,0,4,-1,0,2],[0,0,2,1,5,-1,0,1]]},)"
      R"({"rank":1,"cut":true,"partial":false,"ops":[[0,0,2,1,5,-1,0,1],[1,0,0,2,6,2,1,0]]},{"rank":2,"ops":[[0,0,1,0,4,-1,0,2]]}]},)"
      R"("sources":[["/tmp/r_0","flight_recorder",0,2,""],["/tmp/r_1","flight_recorder",1,2,"it is cut"]]})",
      R"({"first_rank":8,"sources":[["localhost:28028","nccl_ras",-1,2,""]],"ras":{"answered":true,"notes":["a note"],)"
      R"("hang":{"origins":[3],"kind":"missing","group":"communicator 0x1","operation":"AllReduce","since":0,"waiting":[0,2],"frames":"","text":"rank 3"}}})",
  };
}
