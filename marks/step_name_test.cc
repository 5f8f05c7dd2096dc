#include "marks/step_name.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(StepNameTest, ReadsTheNumber) {
  EXPECT_EQ(StepNumber("step 12"), 12);
  EXPECT_EQ(StepNumber("step 0"), 0);
  EXPECT_EQ(StepNumber("step 007"), 7);
  EXPECT_EQ(StepNumber("step 9223372036854775807"), INT64_MAX);
}

TEST(StepNameTest, RefusesAllElse) {
  for (const char* name : {"", "step", "step ", "step12", " step 1", "step  12", "step 12 ", "step 12x", "step -1",
                           "step +1", "step 0x1", "step 1.0", "step x", "Step 1", "steps 1", "step\t1",
                           "step 9223372036854775808", "step 99999999999999999999"}) {
    EXPECT_EQ(StepNumber(name), std::nullopt) << '"' << name << '"';
  }
  EXPECT_EQ(StepNumber(std::string_view("step 1\0", 7)), std::nullopt);
}

}  // namespace
}  // namespace taskd
