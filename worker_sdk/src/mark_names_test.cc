#include "mark_names.h"

#include <gtest/gtest.h>

#include <string>

namespace taskd::worker {
namespace {

class MarkNamesTest : public ::testing::Test {
 protected:
  void Parse(const char* text) {
    names_.Parse(
        text,
        [](const char* line, void* test) {
          static_cast<MarkNamesTest*>(test)->said_ = line;
          ++static_cast<MarkNamesTest*>(test)->times_said_;
        },
        this);
  }

  // "" where the name stays as it is; communication is marked by a '!'.
  std::string Translated(const std::string& name) {
    char storage[MarkNames::kNameBytes];
    MarkNames::Translation out;
    if (!names_.Translate(name.c_str(), storage, out)) return "";
    EXPECT_EQ(out.communication, out.kind == ring::kKindCommunication);
    EXPECT_TRUE(out.communication || KindOfName(out.name) == out.kind) << out.name;
    return (out.communication ? "!" : "") + std::string(out.name);
  }

  MarkNames names_;
  std::string said_;
  int times_said_ = 0;
};

TEST_F(MarkNamesTest, NoRules) {
  for (const char* text : {static_cast<const char*>(nullptr), "", " ", ";", " ; ;"}) Parse(text);
  EXPECT_TRUE(names_.empty());
  EXPECT_EQ(times_said_, 0);
  EXPECT_EQ(Translated("forward_2"), "");
}

TEST_F(MarkNamesTest, EveryKind) {
  Parse(" forward = my_fwd* ;step=iter *;dataloader=next_batch;save_checkpoint=save*;fp=f2; checkpoint=ckpt;");
  EXPECT_EQ(said_, "");
  EXPECT_EQ(Translated("my_fwd"), "forward");
  EXPECT_EQ(Translated("my_fwd_layer_3"), "forward");
  EXPECT_EQ(Translated("f2"), "forward");
  EXPECT_EQ(Translated("iter 12"), "step 12");
  EXPECT_EQ(Translated("next_batch"), "dataloader");
  EXPECT_EQ(Translated("saved"), "save_checkpoint");
  EXPECT_EQ(Translated("ckpt"), "save_checkpoint");
  EXPECT_EQ(Translated("my_fw"), "");
  EXPECT_EQ(Translated("not my_fwd"), "");
  EXPECT_EQ(Translated("Iter 12"), "");
  EXPECT_EQ(Translated(""), "");
}

TEST_F(MarkNamesTest, NamesOfTheirOwnStay) {
  Parse("forward=*");
  for (const char* name : {"step 1", "forward", "dataloader", "save_checkpoint"})
    EXPECT_EQ(Translated(name), "") << name;
  EXPECT_EQ(Translated("step"), "forward");
  EXPECT_EQ(Translated("step 1a"), "forward");
}

TEST_F(MarkNamesTest, TheFirstRuleCounts) {
  Parse("dataloader=load *;forward=*");
  EXPECT_EQ(Translated("load 3"), "dataloader");
  EXPECT_EQ(Translated("unload 3"), "forward");
}

TEST_F(MarkNamesTest, Patterns) {
  Parse(R"(forward=a?c;forward=*mid*end;forward=lit\*;forward=semi\;colon;forward=back\\slash;forward=**two)");
  for (const char* name : {"abc", "a*c", "xmidyend", "midend", "mid end mid end", "lit*", "semi;colon", R"(back\slash)",
                           "two", "one two"}) {
    EXPECT_EQ(Translated(name), "forward") << name;
  }
  for (const char* name : {"ac", "abbc", "mid end?", "lit", "literal", "semi", "backslash", "twoo"}) {
    EXPECT_EQ(Translated(name), "") << name;
  }
}

TEST_F(MarkNamesTest, StepNumbers) {
  Parse("step=iter *;step=epoch * batch */500;step=train;step=it_*_x");
  EXPECT_EQ(Translated("iter 12/500"), "step 12");
  EXPECT_EQ(Translated("iter 007"), "step 7");
  EXPECT_EQ(Translated("epoch 3 batch 120/500"), "step 120");
  EXPECT_EQ(Translated("it_44_x"), "step 44");
  EXPECT_EQ(Translated("iter 123456789012345678"), "step 123456789012345678");
  // Without a number they are counted.
  EXPECT_EQ(Translated("train"), "step 0");
  EXPECT_EQ(Translated("iter x"), "step 1");
  EXPECT_EQ(Translated("iter "), "step 2");
  EXPECT_EQ(Translated("iter 1234567890123456789"), "step 3");
}

TEST_F(MarkNamesTest, Communication) {
  Parse("communication=all*");
  EXPECT_EQ(Translated("allreduce"), R"(!{"count": "0","dataType": "na","groupName": "user","opName": "allreduce"})");
  EXPECT_EQ(Translated("all\"\\\n"), R"(!{"count": "0","dataType": "na","groupName": "user","opName": "all___"})");
  const std::string longest = Translated("all" + std::string(1000, 'x'));
  EXPECT_LE(longest.size(), 1 + MarkNames::kNameBytes - 1u);
  EXPECT_TRUE(longest.ends_with("xx\"}"));
}

TEST_F(MarkNamesTest, BadRulesAreSaidOnceAndLeftOut) {
  Parse("nonsense;backward=b*;forward=;forward=ok;=x");
  EXPECT_EQ(times_said_, 1);
  EXPECT_EQ(said_, "TASKD_MARK_NAMES: 'nonsense' is left out: a rule is kind=pattern (and 3 more)");
  EXPECT_EQ(Translated("ok"), "forward");
}

TEST_F(MarkNamesTest, BadKindsAreNamed) {
  Parse("Forward=x");
  EXPECT_EQ(said_,
            "TASKD_MARK_NAMES: 'Forward=x' is left out: the kind must be step, forward, dataloader, save_checkpoint or "
            "communication");
}

TEST_F(MarkNamesTest, Bounds) {
  Parse(("forward=" + std::string(MarkNames::kMaxPatternBytes + 1, 'a')).c_str());
  EXPECT_TRUE(said_.ends_with("a pattern has at most 128 bytes")) << said_;
  EXPECT_TRUE(names_.empty());
  std::string many;
  for (int i = 0; i <= MarkNames::kMaxRules; ++i) many += "forward=name" + std::to_string(i) + ";";
  Parse(many.c_str());
  EXPECT_TRUE(said_.ends_with("there are at most 32 rules")) << said_;
  EXPECT_EQ(Translated("name31"), "forward");
  EXPECT_EQ(Translated("name32"), "");
}

// Of a pattern that makes a matcher with naive backtracking never end.
TEST_F(MarkNamesTest, ManyStars) {
  std::string pattern = "forward=";
  for (int i = 0; i < 60; ++i) pattern += "*a";
  Parse((pattern + "*b").c_str());
  EXPECT_EQ(said_, "");
  EXPECT_EQ(Translated(std::string(250, 'a')), "");
  EXPECT_EQ(Translated(std::string(250, 'a') + "b"), "forward");
}

}  // namespace
}  // namespace taskd::worker
