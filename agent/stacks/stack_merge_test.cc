#include "agent/stacks/stack_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace taskd::stacks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

RankStacks Rank(int rank, std::vector<std::string> python, std::vector<std::string> native = {}) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.node = rank / 8;
  stacks.pid = 1000 + rank;
  stacks.command = "python3";
  ThreadStack& thread = stacks.threads.emplace_back();
  thread.tid = stacks.pid;
  thread.name = "python3";
  thread.state = "S";
  thread.syscall = "futex";
  thread.python = std::move(python);
  thread.native = std::move(native);
  return stacks;
}

TEST(StackJsonTest, ThereAndBack) {
  RankStacks rank = Rank(5, {"wait (a.py:1)"}, {"poll+0x4f (libc.so.6)"});
  rank.note = "a note";
  rank.threads[0].wchan = "futex_wait";
  rank.threads[0].note = "another";
  rank.threads[0].script = "main (t.py:12)";
  absl::StatusOr<std::vector<RankStacks>> read = DecodeStacks(EncodeStacks({rank}));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(1));
  const RankStacks& copy = (*read)[0];
  EXPECT_EQ(std::tie(copy.rank, copy.node, copy.pid, copy.command, copy.note),
            std::tie(rank.rank, rank.node, rank.pid, rank.command, rank.note));
  ASSERT_THAT(copy.threads, SizeIs(1));
  const ThreadStack& a = copy.threads[0];
  const ThreadStack& b = rank.threads[0];
  EXPECT_EQ(std::tie(a.tid, a.name, a.state, a.wchan, a.syscall, a.python, a.script, a.native, a.note),
            std::tie(b.tid, b.name, b.state, b.wchan, b.syscall, b.python, b.script, b.native, b.note));
}

TEST(StackJsonTest, KeepsToItsSize) {
  std::vector<RankStacks> stacks;
  for (int rank = 0; rank < 20; ++rank) {
    stacks.push_back(Rank(rank, {}, std::vector<std::string>(100, std::string(50, 'f'))));
    stacks.back().threads.resize(50, stacks.back().threads[0]);
  }
  ASSERT_GT(EncodeStacks(stacks, size_t{1} << 30).size(), size_t{4} << 20);
  for (size_t limit : {size_t{2} << 20, size_t{500'000}, size_t{20'000}}) {
    std::string json = EncodeStacks(stacks, limit);
    EXPECT_LE(json.size(), limit);
    absl::StatusOr<std::vector<RankStacks>> read = DecodeStacks(json);
    ASSERT_TRUE(read.ok());
    ASSERT_THAT(*read, SizeIs(20));
    EXPECT_THAT((*read)[19].threads[0].native, Not(SizeIs(0)));
  }
}

TEST(StackJsonTest, BytesThatAreNoText) {
  RankStacks rank = Rank(0, {});
  rank.command = "\xff\xfe";
  std::string json = EncodeStacks({rank});
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_TRUE(DecodeStacks(json).ok());
}

TEST(StackJsonTest, RefusesOtherTexts) {
  for (const char* text : {"", "{", "[]", "{}", R"({"ranks":1})", R"({"ranks":[1]})"}) {
    EXPECT_EQ(DecodeStacks(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  absl::StatusOr<std::vector<RankStacks>> odd =
      DecodeStacks(R"({"ranks":[{"rank":"x","threads":[1,{"python":[1,"f"]}]}],"more":1})");
  ASSERT_TRUE(odd.ok());
  EXPECT_THAT((*odd)[0].threads[0].python, ElementsAre("f"));
}

TEST(MergeTest, WhoIsAloneComesFirst) {
  std::vector<RankStacks> stacks;
  for (int rank = 7; rank >= 0; --rank) {
    // Other lines of one function are one place.
    stacks.push_back(rank == 5 ? Rank(rank, {"load (data.py:33)", "main (train.py:9)"})
                               : Rank(rank, {absl::StrCat("all_reduce (dist.py:", rank, ")"), "main (train.py:12)"}));
  }
  MergedStacks merged = MergeStacks(stacks);
  EXPECT_EQ(merged.title, "stacks of 8 ranks in 2 groups; rank 5 in load (data.py:33)");
  const size_t rare = merged.log.find("  rank 5 (1 of 8): load (data.py:33)");
  const size_t common = merged.log.find("  ranks 0-4, 6, 7 (7 of 8): all_reduce (dist.py:0)");
  EXPECT_NE(rare, std::string::npos) << merged.log;
  EXPECT_NE(common, std::string::npos) << merged.log;
  EXPECT_LT(rare, common);
  EXPECT_THAT(merged.log, HasSubstr("py main (train.py:9)"));
  EXPECT_THAT(merged.log, HasSubstr("rank 5 on node 0, pid 1005 python3: state S, in futex"));
}

TEST(MergeTest, NativeFramesWherePythonIsSilent) {
  MergedStacks merged = MergeStacks({Rank(0, {}, {"poll+0x4f (libc.so.6)", "main+0x3 (train)"}),
                                     Rank(1, {}, {"poll+0x44 (libc.so.6)", "main+0x9 (train)"}),
                                     Rank(2, {}, {"read+0xd (libc.so.6)", "main+0x9 (train)"})});
  EXPECT_EQ(merged.title, "stacks of 3 ranks in 2 groups; rank 2 in read+0xd (libc.so.6)");
}

TEST(MergeTest, OneGroup) {
  EXPECT_EQ(MergeStacks({Rank(0, {"f (a.py:1)"}), Rank(1, {"f (a.py:1)"})}).title, "stacks of 2 ranks in 1 group");
}

TEST(MergeTest, StoppedAndGone) {
  RankStacks stopped = Rank(1, {});
  stopped.threads[0].state = "T";
  stopped.threads[0].note = "stopped";
  stopped.note = "stopped: only what /proc says";
  RankStacks gone;
  gone.rank = 2;
  gone.note = "its process has ended";
  MergedStacks merged = MergeStacks({Rank(0, {"f (a.py:1)"}), stopped, gone});
  EXPECT_THAT(merged.log, HasSubstr("rank 1 (1 of 3): stopped"));
  EXPECT_THAT(merged.log, HasSubstr("rank 2 (1 of 3): its process has ended"));
}

TEST(MergeTest, OtherThreadsAreGroupedToo) {
  std::vector<RankStacks> stacks;
  for (int rank = 0; rank < 2; ++rank) {
    stacks.push_back(Rank(rank, {"f (a.py:1)"}));
    for (int i = 0; i < 3; ++i) {
      ThreadStack thread;
      thread.tid = 5000 + i;
      thread.name = "pool";
      thread.native = {"futex_wait+0x1 (libc.so.6)"};
      stacks.back().threads.push_back(thread);
    }
  }
  EXPECT_THAT(MergeStacks(stacks).log, HasSubstr("ranks 0, 1, 6 threads pool: futex_wait+0x1"));
}

TEST(MergeTest, LogHasALimitAndTheFileHasNot) {
  std::vector<RankStacks> stacks;
  for (int rank = 0; rank < 5000; ++rank) stacks.push_back(Rank(rank, {absl::StrCat("f", rank, " (a.py:1)")}));
  MergedStacks merged = MergeStacks(stacks);
  EXPECT_LE(merged.log.size(), kMaxLogStackBytes);
  EXPECT_THAT(merged.log, HasSubstr("more groups"));
  EXPECT_THAT(merged.log, HasSubstr("rank 0 (1 of 5000)"));
  EXPECT_THAT(merged.full, HasSubstr("f4999"));
}

TEST(MergeTest, NamesCannotSteerATerminal) {
  MergedStacks merged = MergeStacks({Rank(0, {"f\x1b[2J (a.py:1)"})});
  EXPECT_THAT(merged.full, Not(HasSubstr("\x1b")));
  EXPECT_THAT(merged.title, StartsWith("stacks of 1 rank in 1 group"));
}

TEST(MergeTest, NotesCannotEither) {
  RankStacks noted = Rank(0, {"f (a.py:1)"});
  noted.note = "\x1b[2J";
  RankStacks gone;
  gone.rank = 1;
  gone.note = "\x1b[31m";
  EXPECT_THAT(MergeStacks({noted, gone}).full, Not(HasSubstr("\x1b")));
}

TEST(MergeTest, OneFrameDoesNotFillTheLog) {
  MergedStacks merged = MergeStacks({Rank(0, {std::string(100'000, 'f')}), Rank(1, {"g (a.py:1)"})});
  EXPECT_LE(merged.log.size(), kMaxLogStackBytes);
  EXPECT_LT(merged.title.size(), 1000u);
  EXPECT_THAT(merged.log, HasSubstr("g (a.py:1)"));
}

TEST(MergeTest, WhoIsWaitedForIsTheTitleByTheUsersScript) {
  RankStacks victim = Rank(0, {"backward (__init__.py:197)", "main (t.py:11)"});
  RankStacks origin = Rank(1, {"select (selectors.py:415)", "main (t.py:10)"});
  victim.threads[0].script = "main (t.py:11)";
  origin.threads[0].script = "main (t.py:10)";
  EXPECT_EQ(MergeStacks({victim, origin}, {1}).title, "stacks of 2 ranks in 2 groups; rank 1 in main (t.py:10)");
}

TEST(MergeTest, Nothing) { EXPECT_EQ(MergeStacks({}).title, "stacks of 0 ranks in 0 groups"); }

}  // namespace
}  // namespace taskd::stacks
