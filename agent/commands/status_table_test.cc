#include "agent/commands/status_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::commands {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As wanted, at step 100 of 50 ms, with 7 marks.
v1::JobStatus MakeStatus(int nodes, int ranks_per_node) {
  v1::JobStatus status;
  status.mutable_wanted()->set_revision(3);
  for (int n = 0; n < nodes; ++n) {
    v1::NodeStatus& node = *status.add_nodes();
    node.set_node(n);
    node.set_host(absl::StrCat("host-", n));
    node.set_connected(true);
    for (int i = 0; i < ranks_per_node; ++i) {
      v1::RankStatus& rank = *node.add_ranks();
      rank.set_rank(n * ranks_per_node + i);
      rank.set_pid(1000 + i);
      rank.set_attached(true);
      rank.set_applied_revision(3);
      rank.set_step(100);
      rank.set_step_ms(50);
      rank.mutable_marks()->set_step(3);
      rank.mutable_marks()->set_communication(4);
    }
  }
  return status;
}

v1::RankStatus& RankOf(v1::JobStatus& status, int rank) {
  for (v1::NodeStatus& node : *status.mutable_nodes()) {
    for (v1::RankStatus& one : *node.mutable_ranks()) {
      if (one.rank() == rank) return one;
    }
  }
  throw std::out_of_range("no such rank");
}

size_t Lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST(RenderStatusTest, SaysWhomTheRendezvousWaitsFor) {
  v1::JobStatus status;
  EXPECT_THAT(RenderStatus(status, 10), Not(HasSubstr("rendezvous")));
  status.mutable_supervision()->set_waits_for("nodes 2, 5-7 (4 of 8 here)\x1b");
  status.mutable_supervision()->set_waits_s(41.4);
  EXPECT_THAT(RenderStatus(status, 10),
              HasSubstr("\nrendezvous: waits for nodes 2, 5-7 (4 of 8 here)\\x1b for 41 s\n"));
}

TEST(SumUpRanksTest, EqualRanksAreOneLine) {
  EXPECT_EQ(SumUpRanks(MakeStatus(2, 4)),
            "\n #ranks           steps   step ms   longest       #marks      lost  state\n"
            "      8             100      50.0      50.0           56         0  as wanted: ranks 0-7\n"
            "each rank: --all\n");
}

TEST(SumUpRanksTest, WhatDiffersHasALineOfItsOwn) {
  v1::JobStatus status = MakeStatus(4, 4);
  RankOf(status, 3).set_applied_revision(2);
  RankOf(status, 5).set_attached(false);
  RankOf(status, 5).set_reason("its process has ended");
  RankOf(status, 6).set_step(90);
  RankOf(status, 7).set_lost(12);
  RankOf(status, 8).set_failed_revision(3);
  RankOf(status, 8).set_reason("not applied: another profiler is subscribed");
  RankOf(status, 9).set_step_ms(70);
  status.mutable_nodes(3)->set_connected(false);
  const std::string text = SumUpRanks(status);
  EXPECT_THAT(text, HasSubstr("no proxy connected on nodes 3\n"));
  EXPECT_THAT(text, HasSubstr("      7             100      50.0      70.0           49         0  "
                              "as wanted: ranks 0-2, 4, 9-11\n      1             100"));
  EXPECT_THAT(text, HasSubstr("not switched yet: ranks 3\n"));
  EXPECT_THAT(text, HasSubstr("gone: its process has ended: ranks 5\n"));
  EXPECT_THAT(text,
              HasSubstr("              90      50.0      50.0            7         0  as wanted, but steps behind: "
                        "ranks 6\n"));
  EXPECT_THAT(text, HasSubstr("12  as wanted, but marks were lost: ranks 7\n"));
  EXPECT_THAT(text, HasSubstr("not applied: another profiler is subscribed: ranks 8\n"));
  EXPECT_THAT(text, HasSubstr("no proxy connected: ranks 12-15\n"));
}

TEST(SumUpRanksTest, RanksOfAJobDifferByAStepOrTwo) {
  v1::JobStatus status = MakeStatus(1, 4);
  RankOf(status, 1).set_step(98);
  EXPECT_THAT(SumUpRanks(status), HasSubstr("          98-100"));
  EXPECT_THAT(SumUpRanks(status), Not(HasSubstr("behind")));
}

TEST(SumUpRanksTest, OneRanksOddStepLeavesTheOthersAsTheyAre) {
  v1::JobStatus status = MakeStatus(1, 4);
  RankOf(status, 1).set_step(int64_t{1} << 62);
  const std::string text = SumUpRanks(status);
  EXPECT_THAT(text,
              HasSubstr("             100      50.0      50.0           21         0  as wanted: ranks 0, 2, 3\n"));
  EXPECT_THAT(text, HasSubstr("as wanted, but steps far ahead: ranks 1\n"));
}

TEST(SumUpRanksTest, BeforeTheFirstStep) {
  v1::JobStatus status = MakeStatus(1, 1);
  RankOf(status, 0).set_step(-1);
  EXPECT_THAT(SumUpRanks(status), HasSubstr("      1               -         -         -            7"));
}

TEST(SumUpRanksTest, FewLinesForManyRanks) {
  v1::JobStatus status = MakeStatus(2048, 8);
  EXPECT_EQ(Lines(SumUpRanks(status)), 4U);
  for (int rank = 0; rank <= 200; rank += 2) {
    RankOf(status, rank).set_attached(false);
    RankOf(status, rank).set_reason(absl::StrCat("process ", rank, " has ended"));
  }
  const std::string text = SumUpRanks(status);
  EXPECT_EQ(Lines(text), 28U);
  EXPECT_THAT(text, HasSubstr("  and 78 ranks in 78 more states\n"));
}

TEST(SumUpRanksTest, ForeignTextIsShownAsText) {
  v1::JobStatus status = MakeStatus(1, 2);
  RankOf(status, 1).set_attached(false);
  RankOf(status, 1).set_reason("\x1b[2J\n");
  EXPECT_THAT(SumUpRanks(status), Not(HasSubstr("\x1b")));
  status.mutable_nodes(0)->set_host("\x1b[2J");
  EXPECT_THAT(ListRanks(status), Not(HasSubstr("\x1b")));
}

// contract: §1.6; upstream recovers, here `taskd status` says that nobody does.
TEST(RenderStatusTest, WhatWasAskedForAndWillNotHappen) {
  v1::JobStatus status = MakeStatus(1, 1);
  EXPECT_THAT(RenderStatus(status, 32), Not(HasSubstr("not supported")));
  status.add_not_supported("process recovery (PROCESS_RECOVER=on)");
  status.add_not_supported("elastic training (HIGH_AVAILABILITY=\x1b[2J)");
  EXPECT_THAT(RenderStatus(status, 32), HasSubstr("\nnot supported: process recovery (PROCESS_RECOVER=on), "
                                                  "elastic training (HIGH_AVAILABILITY=\\x1b[2J)\n"));
}

TEST(ListRanksTest, EachRank) {
  v1::JobStatus status = MakeStatus(2, 1);
  status.mutable_nodes(1)->set_connected(false);
  status.mutable_nodes(1)->clear_ranks();
  EXPECT_EQ(ListRanks(status),
            "\nnode 0 (host-0)\n"
            "  rank    step  step ms     #step  #forward #dataloader #checkpoint #communication    #other   lost  "
            "ns/mark      "
            "pid  state\n"
            "     0     100     50.0         3         0           0           0              4         0      0       "
            " 0     "
            "1000  as wanted\n"
            "\nnode 1 (host-1): its proxy is not connected\n"
            "  no ranks\n");
}

TEST(RenderStatusTest, AJobThatHasEndedIsToldOfInThePast) {
  v1::JobStatus status = MakeStatus(1, 1);
  status.set_uptime_s(46);
  status.mutable_nodes(0)->set_connected(false);
  status.mutable_supervision()->set_state(v1::SupervisionStatus::ENDED);
  for (const int most_listed : {0, 32}) {
    const std::string text = RenderStatus(status, most_listed, true);
    EXPECT_THAT(text, HasSubstr("  manager was up for 46 s\n"));
    EXPECT_THAT(text, Not(HasSubstr("connected")));
  }
}

}  // namespace
}  // namespace taskd::commands
