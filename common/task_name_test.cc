#include "common/task_name.h"

#include "gmock/gmock.h"

namespace taskd {
namespace {

TEST(PlainFileName, IsOnePartOfAPath) {
  EXPECT_EQ(PlainFileName("slurm/train-7"), "slurm-train-7");
  EXPECT_EQ(PlainFileName("a b\n../\xc3\xa4"), "a-b-..---");
  EXPECT_EQ(PlainFileName(std::string(300, 'x')).size(), 100u);
}

TEST(FreshTaskName, IsNoOthers) {
  EXPECT_THAT(FreshTaskName(), ::testing::MatchesRegex("default_task_id_[0-9]{10}_[A-Za-z0-9._-]+_[0-9a-f]{8}"));
  EXPECT_NE(FreshTaskName(), FreshTaskName());
}

}  // namespace
}  // namespace taskd
