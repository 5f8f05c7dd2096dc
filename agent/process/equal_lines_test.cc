#include "agent/process/equal_lines.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::process {
namespace {

using ::testing::ElementsAre;

class EqualLinesTest : public ::testing::Test {
 protected:
  int Join(int local_rank, const std::string& prefix = "[r${local_rank}]:") {
    return lines_.Join({local_rank, 100 + local_rank, prefix, std::make_shared<Console::Share>()});
  }
  void JoinRanks(int count) {
    for (int rank = 0; rank < count; ++rank) ids_.push_back(Join(rank));
  }
  void Add(int rank, const std::string& lines) { lines_.Add(ids_[static_cast<size_t>(rank)], lines); }
  // When what waits is due.
  std::string ShownLater() {
    now_ns_ += EqualLines::kHoldNs;
    loop_.RunAfter(EqualLines::kHoldNs, [this] { loop_.Stop(); });  // the timer for the lines was set before this one
    loop_.Run();
    return shown_;
  }

  EventLoop loop_;
  std::string shown_;
  size_t outputs_ = 0;
  int64_t now_ns_ = 1;
  EqualLines lines_{&loop_,
                    [this](const std::string& lines, const std::shared_ptr<Console::Share>&) {
                      shown_ += lines;
                      ++outputs_;
                    },
                    [this] { return now_ns_; }};
  std::vector<int> ids_;
};

TEST_F(EqualLinesTest, WhatAllSayIsShownOnceAndAtOnce) {
  JoinRanks(3);
  Add(0, "CUDA error\n");
  Add(2, "CUDA error\n");
  EXPECT_EQ(shown_, "");
  Add(1, "CUDA error\n");
  EXPECT_EQ(shown_, "[r0-2]:CUDA error\n");
}

TEST_F(EqualLinesTest, WhatSomeSayWaitsForOthersForAWhile) {
  JoinRanks(11);
  for (int rank : {1, 2, 3, 4, 5, 6, 7, 9}) Add(rank, "CUDA error\n");
  Add(0, "mine\n");
  const std::string wanted = "[r1-7,9]:CUDA error\n[r0]:mine\n";
  EXPECT_EQ(ShownLater(), wanted);
}

TEST_F(EqualLinesTest, GlobalRanks) {
  ids_ = {Join(0, "<${rank}|${local_rank}|${node}>"), Join(1, "<${rank}|${local_rank}|${node}>")};
  Add(0, "x\n");
  Add(1, "x\n");
  EXPECT_EQ(shown_, "<100,101|0,1|${node}>x\n");
}

TEST_F(EqualLinesTest, ARankAloneDoesNotWait) {
  JoinRanks(1);
  Add(0, "a\nb\na\n");
  EXPECT_EQ(shown_, "[r0]:a\n[r0]:b\n[r0]:a\n");
  EXPECT_EQ(outputs_, 1u);
  JoinRanks(1);
  Add(0, "c\n");
  lines_.Leave(ids_[1]);
  EXPECT_TRUE(shown_.ends_with("[r0]:c\n"));
}

TEST_F(EqualLinesTest, PrefixWithoutARankDoesNotWait) {
  ids_ = {Join(0, "p:"), Join(1, "p:")};
  Add(0, "a\nb\n");
  Add(1, "a\n");
  EXPECT_EQ(shown_, "p:a\np:b\np:a\n");
}

TEST_F(EqualLinesTest, TheOrderOfARankIsKept) {
  JoinRanks(2);
  Add(0, "a\nb\nc\n");
  Add(1, "c\na\nb\n");  // its a and b may not overtake its c
  const std::string wanted = "[r0]:a\n[r0]:b\n[r0,1]:c\n[r1]:a\n[r1]:b\n";
  EXPECT_EQ(ShownLater(), wanted);
}

// Else what all say would be shown once a rank wherever each has said something of its own before.
TEST_F(EqualLinesTest, OwnLinesDoNotKeepEqualOnesApart) {
  JoinRanks(3);
  Add(0, "I am 0\nno memory\nbye from 0\nbye\n");
  Add(1, "I am 1\nno memory\nbye from 1\nbye\n");
  Add(2, "I am 2\n");
  Add(2, "no memory\nbye\n");
  const std::string wanted =
      "[r0]:I am 0\n[r1]:I am 1\n[r2]:I am 2\n[r0-2]:no memory\n[r0]:bye from 0\n[r1]:bye from 1\n[r0-2]:bye\n";
  EXPECT_EQ(ShownLater(), wanted);
}

// A line that moved ahead of an older one is no reason to hold that for longer.
TEST_F(EqualLinesTest, NothingWaitsLongerForWhatMovedAhead) {
  JoinRanks(3);
  Add(0, "x\n");
  now_ns_ += EqualLines::kHoldNs;
  Add(1, "own\nx\n");
  EXPECT_EQ(shown_, "[r1]:own\n[r0,1]:x\n");
}

TEST_F(EqualLinesTest, WhatARankSaysTwiceIsShownTwice) {
  JoinRanks(2);
  Add(0, "a\na\n");
  Add(1, "a\na\na\n");
  const std::string wanted = "[r0,1]:a\n[r0,1]:a\n[r1]:a\n";
  EXPECT_EQ(ShownLater(), wanted);
}

TEST_F(EqualLinesTest, NobodyWaitsForOneThatHasLeft) {
  JoinRanks(3);
  Add(0, "a\nb\n");
  Add(1, "a\n");
  EXPECT_EQ(shown_, "");
  lines_.Leave(ids_[2]);
  EXPECT_EQ(shown_, "[r0,1]:a\n");
  lines_.Leave(ids_[0]);
  lines_.Leave(ids_[0]);
  EXPECT_EQ(shown_, "[r0,1]:a\n[r0]:b\n");
}

// Also what the last one leaves behind.
TEST_F(EqualLinesTest, MemoryIsBounded) {
  JoinRanks(2);
  const std::string line(1023, 'x');
  size_t added = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::string one = std::to_string(i) + line + "\n";
    Add(0, one);
    added += one.size() + 5;
    ASSERT_LE(added - shown_.size(), EqualLines::kMaxHeldBytes + 5 * EqualLines::kMaxHeldLines);
  }
  Add(1, std::string(EqualLines::kMaxHeldBytes, 'y') + "\n");
  EXPECT_EQ(shown_.size(), added + EqualLines::kMaxHeldBytes + 6);
  for (int i = 0; i < 20000; ++i) Add(0, "\n");
  EXPECT_GE(std::count(shown_.begin(), shown_.end(), '\n'), 30001 - static_cast<int>(EqualLines::kMaxHeldLines));
  lines_.Leave(ids_[1]);
  lines_.Leave(ids_[0]);
  EXPECT_EQ(std::count(shown_.begin(), shown_.end(), '\n'), 30001);
}

TEST_F(EqualLinesTest, TheFirstOnesShareIsCharged) {
  std::vector<Console::Share*> charged;
  EqualLines lines(&loop_, [&](const std::string&, const std::shared_ptr<Console::Share>& share) {
    charged.push_back(share.get());
  });
  auto a = std::make_shared<Console::Share>(), b = std::make_shared<Console::Share>();
  const int first = lines.Join({0, 0, "${rank}:", a}), second = lines.Join({1, 1, "${rank}:", b});
  lines.Add(first, "x\n");
  lines.Add(second, "x\ny\n");
  lines.Add(first, "y\nz\n");
  lines.Leave(second);
  EXPECT_THAT(charged, ElementsAre(a.get(), b.get(), a.get()));
}

}  // namespace
}  // namespace taskd::process
