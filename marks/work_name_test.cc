#include "marks/work_name.h"

#include <gtest/gtest.h>

namespace taskd {
namespace {

double AmountOf(std::string_view name) {
  const std::optional<SaidWork> said = WorkOfName(name);
  return said && said->usable ? said->amount : -1;
}

TEST(WorkName, ANumberIsTheWork) {
  EXPECT_EQ(AmountOf("{\"work\": 4096}"), 4096);
  EXPECT_EQ(AmountOf("{\"work\":0}"), 0);
  EXPECT_EQ(AmountOf("{\"work\": 12.5}"), 12.5);
  EXPECT_EQ(AmountOf("{\"work\": 1e6 }"), 1e6);
  EXPECT_EQ(AmountOf("{\"work\": 7,\"unit\": \"tokens\"}"), 7);
}

TEST(WorkName, WhatIsNoNumberFromZeroOnIsSaidButNotUsable) {
  for (std::string_view name : {"{\"work\": -5}", "{\"work\": NaN}", "{\"work\": inf}", "{\"work\": 1e999}",
                                "{\"work\": \"5\"}", "{\"work\": }", "{\"work\":", "{\"work\": 5x}", "{\"work\": 5"}) {
    const std::optional<SaidWork> said = WorkOfName(name);
    ASSERT_TRUE(said) << name;
    EXPECT_FALSE(said->usable) << name;
  }
}

TEST(WorkName, OtherNamesSayNone) {
  for (std::string_view name : {"", "work", "{\"workers\": 5}", "{\"count\": \"5\"}", "step 5", " {\"work\": 5}"}) {
    EXPECT_FALSE(WorkOfName(name)) << name;
  }
}

TEST(WorkName, IsCutOffAStepsAndAForwardsName) {
  std::string_view name = "step 7 {\"work\": 4096}";
  std::optional<SaidWork> said = CutWork(name);
  ASSERT_TRUE(said && said->usable);
  EXPECT_EQ(said->amount, 4096);
  EXPECT_EQ(name, "step 7");

  name = "forward {\"work\": -1}";
  said = CutWork(name);
  ASSERT_TRUE(said);
  EXPECT_FALSE(said->usable);
  EXPECT_EQ(name, "forward");

  for (std::string_view other : {"step 7", "forward", "forward {}", "eval {\"work\": 5}", "step 7 {\"work\": 5} x"}) {
    name = other;
    EXPECT_FALSE(CutWork(name)) << other;
    EXPECT_EQ(name, other);
  }
}

}  // namespace
}  // namespace taskd
