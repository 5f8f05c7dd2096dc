#include "policy/options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::policy {
namespace {

using ::testing::HasSubstr;

TEST(OptionsTest, DefaultsAreTheInterfaces) {
  EXPECT_EQ(Text(When()), "cause=compute,memory,dataloader,host,network;confidence>=0.95;open>=50 steps;cost>=5%");
  EXPECT_EQ(Text(Evictions()), "1/1");
  EXPECT_EQ(Evictions().of_job, 3);
  EXPECT_EQ(*ParseWhen(""), When());
  EXPECT_EQ(*ParseEvictions(""), Evictions());
  EXPECT_EQ(*ParseRemaining(""), std::nullopt);
}

TEST(OptionsTest, AnyPartMayBeGivenAlone) {
  EXPECT_EQ(Text(*ParseWhen("cost>=3%")),
            "cause=compute,memory,dataloader,host,network;confidence>=0.95;open>=50 steps;cost>=3%");
  EXPECT_EQ(Text(*ParseWhen(" cause = gc , host ; open >= 7steps")),
            "cause=host,gc;confidence>=0.95;open>=7 steps;cost>=5%");
  for (const char* text : {"confidence>=0.5", "open>=0 steps", "cause=fabric;confidence>=1;open>=1 steps;cost>=0.5%"}) {
    const absl::StatusOr<When> when = ParseWhen(text);
    ASSERT_TRUE(when.ok()) << text;
    EXPECT_EQ(*ParseWhen(Text(*when)), *when) << text;
  }
}

TEST(OptionsTest, AWrongUnitIsOneLineWithFlagValueAndRule) {
  for (const char* text : {"open>=50",
                           "open>=50s",
                           "open>=5 minutes",
                           "open=50 steps",
                           "open>=-1 steps",
                           "cost>=5",
                           "cost>=5ms",
                           "cost>=101%",
                           "cost>5%",
                           "confidence>=95%",
                           "confidence>=1.1",
                           "confidence>=nan",
                           "cause=slow",
                           "cause=",
                           "cause=unknown",
                           "cause>=host",
                           "speed>=1",
                           ";",
                           "cost>=5%;cost>=6%",
                           "cost",
                           "cause"}) {
    const absl::Status refused = ParseWhen(text).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--on-slow-when: '")) << text;
    EXPECT_EQ(refused.message().find('\n'), std::string::npos) << text;
  }
  for (const char* text : {"1", "0/1", "1/0", "-1/1", "1/1h", "1/1/1", "a/b", "1.5/1", "1/inf"}) {
    EXPECT_THAT(std::string(ParseEvictions(text).status().message()), HasSubstr("--evictions: '")) << text;
  }
  for (const char* text : {"-1", "1h", "nan", "1e9"}) {
    EXPECT_THAT(std::string(ParseRemaining(text).status().message()), HasSubstr("--remaining: '")) << text;
  }
  EXPECT_THAT(std::string(ParseOnSlow("evict").status().message()), HasSubstr("--on-slow: 'evict' is not report"));
}

TEST(OptionsTest, AnOwnBudgetReplacesTheJobs) {
  const Evictions evictions = *ParseEvictions("4/0.5");
  EXPECT_EQ(evictions.nodes, 4);
  EXPECT_EQ(evictions.hours, 0.5);
  EXPECT_EQ(evictions.of_job, std::nullopt);
}

TEST(OptionsTest, EverythingHasItsName) {
  for (OnSlow mode : {OnSlow::kReport, OnSlow::kRehearse, OnSlow::kOrder, OnSlow::kReplace, OnSlow::kDrop}) {
    EXPECT_EQ(*ParseOnSlow(Name(mode)), mode);
  }
  EXPECT_EQ(*ParseRemaining("0"), 0.0);
}

TEST(OptionsTest, ReadsAllOfThem) {
  const absl::StatusOr<Options> none = ReadOptions({});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->on_slow, OnSlow::kReport);
  EXPECT_EQ(none->when, When());
  const absl::StatusOr<Options> all = ReadOptions({"rehearse", "cost>=3%", "0", "2/24"});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->on_slow, OnSlow::kRehearse);
  EXPECT_EQ(all->when.cost_percent, 3);
  EXPECT_EQ(all->remaining_h, 0);
  EXPECT_EQ(all->evictions.nodes, 2);
  for (const char* later : {"replace", "drop"}) {
    EXPECT_THAT(std::string(ReadOptions({later, "", "", ""}).status().message()), HasSubstr("not available"));
  }
  EXPECT_FALSE(ReadOptions({"", "cost>=5", "", ""}).ok());
  EXPECT_FALSE(ReadOptions({"", "", "soon", ""}).ok());
  EXPECT_FALSE(ReadOptions({"", "", "", "1"}).ok());
}

}  // namespace
}  // namespace taskd::policy
