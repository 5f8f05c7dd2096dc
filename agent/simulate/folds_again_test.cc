#include "agent/simulate/folds_again.h"

#include <gtest/gtest.h>

#include "proto/fold_messages.h"
#include "taskd/v1/node.pb.h"

namespace taskd::simulate {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

StepFold FoldOf(int rank) {
  StepFold fold;
  fold.step = 7;
  fold.end_ns = 1'700'000'000 * kSecond + static_cast<uint64_t>(rank);
  fold.start_ns = fold.end_ns - kSecond;
  fold.previous_end_ns = fold.end_ns - kSecond;
  OpFold& op = fold.ops.emplace_back();
  op.count = 3;
  op.first_start_ns = fold.end_ns - 500;
  op.last_end_ns = fold.end_ns + 200;
  return fold;
}

TEST(FoldsAgainTest, ComeLaterWithNewNumbers) {
  v1::FoldSet set;
  for (int rank = 0; rank < 3; ++rank) {
    v1::RankStep* step = set.add_steps();
    proto::FillFold(rank, FoldOf(rank), step);
    step->set_number(40 + static_cast<uint64_t>(rank));
  }
  FoldsAgain again(set);
  EXPECT_EQ(again.size(), 3u);
  EXPECT_EQ(again.step(), 7);
  EXPECT_EQ(again.period_ns(), kSecond);

  for (int64_t moved : {0, 5, 300}) {
    if (moved > 0) again.MoveOn(moved, static_cast<uint64_t>(moved) * kSecond);
    v1::NodeMessage message;
    ASSERT_TRUE(message.ParseFromString(again.Message(1'000'000)));
    ASSERT_EQ(message.folds().steps_size(), 3);
    for (int rank = 0; rank < 3; ++rank) {
      const absl::StatusOr<proto::RankFold> read = proto::ReadFold(message.folds().steps(rank).SerializeAsString());
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->rank, rank);
      EXPECT_EQ(read->number, 1'000'000 + static_cast<uint64_t>(rank));
      const uint64_t later = static_cast<uint64_t>(again.step() - 7) * kSecond;
      StepFold expected = FoldOf(rank);
      expected.step = again.step();
      for (uint64_t* stamp : {&expected.start_ns, &expected.end_ns, &expected.previous_end_ns,
                              &expected.ops[0].first_start_ns, &expected.ops[0].last_end_ns}) {
        *stamp += later;
      }
      EXPECT_EQ(read->fold, expected);
    }
  }
  EXPECT_EQ(again.step(), 312);
}

}  // namespace
}  // namespace taskd::simulate
