#include "agent/run/rank_users.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace taskd::run {
namespace {

TEST(RankUsersTest, LooksAgainForThoseWhoComeLater) {
  std::set<uid_t> users = {0};
  RankUsers ranks([&] { return users; });
  EXPECT_FALSE(ranks.Has(2001, 0));
  users = {2001};
  EXPECT_TRUE(ranks.Has(2001, RankUsers::kAgainNs));
  users = {};
  EXPECT_TRUE(ranks.Has(2001, RankUsers::kAgainNs)) << "a rank may have ended, and what it has started goes on";
}

TEST(RankUsersTest, StrangersDoNotMakeItLookForEver) {
  size_t looks = 0;
  RankUsers ranks([&] {
    ++looks;
    return std::set<uid_t>{2001};
  });
  for (uid_t stranger = 3000; stranger < 4000; ++stranger) {
    EXPECT_FALSE(ranks.Has(stranger, 1));
    EXPECT_FALSE(ranks.Has(stranger, 2));
  }
  EXPECT_EQ(looks, RankUsers::kMostLooks);
  EXPECT_TRUE(ranks.Has(2001, 3)) << "who is known is known";
}

TEST(RankUsersTest, SeesWhomAChildHasBecome) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int became[2];
  int hold[2];
  ASSERT_EQ(pipe(became) + pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(hold[1]);
    char byte = 0;
    const bool is_other = setresuid(2001, 2001, 2001) == 0;
    _exit(is_other && write(became[1], "", 1) == 1 && read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(hold[0]);
  char byte = 0;
  EXPECT_EQ(read(became[0], &byte, 1), 1);
  RankUsers ranks;
  EXPECT_FALSE(ranks.Has(2002, 0));
  EXPECT_TRUE(ranks.Has(2001, 0));
  close(hold[1]);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace taskd::run
