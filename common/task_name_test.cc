#include "common/task_name.h"

#include "gmock/gmock.h"

namespace taskd {
namespace {

TEST(PlainFileName, IsOnePartOfAPath) {
  EXPECT_EQ(PlainFileName("slurm/train-7"), "slurm-train-7");
  EXPECT_EQ(PlainFileName("a b\n../\xc3\xa4"), "a-b-..---");
  EXPECT_EQ(PlainFileName(std::string(300, 'x')).size(), 100u);
}

TEST(DefaultTaskName, HasTheSecond) { EXPECT_EQ(DefaultTaskName(1745567190), "default_task_id_1745567190"); }

}  // namespace
}  // namespace taskd
