#include "marks/step_fold.h"

#include <climits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

bool Blocks(CommOp op, const std::string& label) { return IsBlocking(op, GroupInfo{"g", label, {}}); }

TEST(IsBlocking, PointToPointAlways) {
  for (CommOp op : {CommOp::kSend, CommOp::kRecv, CommOp::kSendRecv}) {
    EXPECT_TRUE(Blocks(op, ""));
    EXPECT_TRUE(Blocks(op, "dp"));
  }
}

TEST(IsBlocking, CollectivesByTheLabel) {
  for (const char* label :
       {"tp", "TP", "tp0", "tp_1", "tensor", "tensor_model_parallel", "cp", "context_parallel", "ep", "expert", "exp",
        "EXPERT_MODEL_PARALLEL_GROUP", "pp", "pipeline", "pipeline_parallel_group", "tp-cp", "tp_exp",
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP", "mesh_tp"}) {
    EXPECT_TRUE(Blocks(CommOp::kAllReduce, label)) << label;
  }
  for (const char* label : {"", "dp", "dp_cp", "data", "data_parallel", "DATA_PARALLEL_GROUP_WITH_CP", "world",
                            "default_group", "group_name_3", "tp-dp", "EXPERT_DATA_PARALLEL_GROUP", "dp_modulo_exp",
                            "embd", "cpu", "tpx", "epoch", "step", "expr"}) {
    EXPECT_FALSE(Blocks(CommOp::kAllReduce, label)) << label;
  }
}

TEST(Members, AreRunsInTheirOrder) {
  using ::testing::ElementsAre;
  EXPECT_THAT(CompressMembers({}), ElementsAre());
  EXPECT_THAT(CompressMembers({5}), ElementsAre(MemberRun{5, 1, 1}));
  EXPECT_THAT(CompressMembers({0, 1, 2, 3}), ElementsAre(MemberRun{0, 1, 4}));
  EXPECT_THAT(CompressMembers({3, 11, 19}), ElementsAre(MemberRun{3, 8, 3}));
  EXPECT_THAT(CompressMembers({0, 1, 8, 9, 16}),
              ElementsAre(MemberRun{0, 1, 2}, MemberRun{8, 1, 2}, MemberRun{16, 1, 1}));
  EXPECT_THAT(CompressMembers({4, 2, 0}), ElementsAre(MemberRun{4, -2, 3}));
  EXPECT_THAT(CompressMembers({7, 7}), ElementsAre(MemberRun{7, 0, 2}));
  EXPECT_THAT(CompressMembers({INT_MIN, INT_MAX}), ElementsAre(MemberRun{INT_MIN, 1, 1}, MemberRun{INT_MAX, 1, 1}));
}

TEST(Members, ComeBackAsTheyWere) {
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {}, {5}, {0, 1, 2, 3}, {0, 1, 8, 9, 16}, {9, 4, 4, 4, 3, 17}, {INT_MIN, INT_MAX, 0}}) {
    EXPECT_EQ(ExpandMembers(CompressMembers(ranks), 100), ranks);
  }
}

TEST(Members, ExpandOnlySoFar) {
  using ::testing::ElementsAre;
  EXPECT_THAT(ExpandMembers({{0, 1, INT_MAX}}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(ExpandMembers({{0, 1, 2}, {8, 1, 2}}, 3), ElementsAre(0, 1, 8));
  EXPECT_THAT(ExpandMembers({{0, 1, -5}, {3, 1, 1}}, 3), ElementsAre(3));
  EXPECT_THAT(ExpandMembers({{INT_MAX - 1, 2, 5}}, 10), ElementsAre(INT_MAX - 1));
}

}  // namespace
}  // namespace taskd
