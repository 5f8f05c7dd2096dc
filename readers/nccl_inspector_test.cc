#include "readers/nccl_inspector.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taskd::readers {
namespace {

// A process with a communicator of its own and `windows` operations in it.
InspectorProcess Process(int number, uint64_t windows) {
  InspectorProcess process;
  process.host = "a";
  process.pid = number;
  process.records = windows;
  InspectorCommunicator& communicator = process.communicators[std::to_string(number)];
  communicator.rank = 0;
  communicator.size = 2;
  for (uint64_t i = 0; i < windows; ++i) {
    communicator.sequences[0].Add(i, {.op = CommOp::kAllReduce, .size_log2 = 3, .peer = -1}, 8, 1000);
  }
  return process;
}

size_t FoldsOf(size_t small) {
  std::vector<InspectorProcess> processes = {Process(0, InspectorSequence::kMaxWindows)};
  for (size_t i = 1; i <= small; ++i) processes.push_back(Process(static_cast<int>(i), 1));
  std::vector<InspectorProcess*> taken;
  for (InspectorProcess& process : processes) taken.push_back(&process);
  size_t folds = 0;
  for (const InspectorRank& rank : FoldInspector(taken).ranks) folds += rank.folded.folds.size();
  return folds;
}

TEST(NcclInspector, MakesNoMoreFoldsThanItsRecordsPayFor) {
  EXPECT_EQ(FoldsOf(1), 2 * InspectorSequence::kMaxWindows);
  EXPECT_LE(FoldsOf(4000), (size_t{1} << 18) + 5000) << "one long file does not make the folds of all others";
}

}  // namespace
}  // namespace taskd::readers
