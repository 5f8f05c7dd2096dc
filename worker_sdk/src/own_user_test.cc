#include "taskd/own_user.h"

#include <sched.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace taskd::worker {
namespace {

bool IsWhole(std::string_view text, size_t piece) {
  UidMap map;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    map.Feed(text.data(), std::min(piece, text.size()));
  }
  return map.is_whole();
}

TEST(OwnUserTest, OnlyTheWholeMapKnowsEverybody) {
  for (size_t piece : {1, 7, 256}) {
    EXPECT_TRUE(IsWhole("         0          0 4294967295\n", piece));
    EXPECT_TRUE(IsWhole("0 0 1000\n1000 1000 4294966295\n", piece)) << "in two ranges";
    EXPECT_FALSE(IsWhole("", piece)) << "not written yet";
    EXPECT_FALSE(IsWhole("0 1000 1\n1 100000 65536\n", piece)) << "a rootless container, which maps 65534";
    EXPECT_FALSE(IsWhole("65534 4294967294 1\n", piece));
    EXPECT_FALSE(IsWhole("0 0 4294967294\n", piece));
  }
}

TEST(OwnUserTest, HereTheOwnUserIsOwn) {
  if (IsUnmappedUser(geteuid())) GTEST_SKIP() << "this user namespace does not map its own user";
  EXPECT_TRUE(IsOwnUser(geteuid()));
  EXPECT_TRUE(IsOwnUserOrRoot(geteuid()));
  EXPECT_TRUE(IsRoot(0));
  EXPECT_FALSE(IsOwnUser(geteuid() + 1));
  errno = EILSEQ;
  IsOwnUserOrRoot(kDefaultOverflowUid);
  EXPECT_EQ(errno, EILSEQ);
}

enum Outcome { kNo = 0, kYes = 1, kNoNamespace = 77 };

// What `body` says in a child of that user (as root) and with that map (empty: none is written) in a user namespace.
int InUserNamespace(uid_t uid, const std::string& map, const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (uid != geteuid() && setresuid(uid, uid, uid) != 0) _exit(kNoNamespace);
    if (unshare(CLONE_NEWUSER) != 0) _exit(kNoNamespace);
    if (!map.empty() && !(std::ofstream("/proc/self/uid_map") << map << std::flush)) _exit(kNoNamespace);
    _exit(body() ? kYes : kNo);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OwnUserTest, WhoIsNotMappedIsNobody) {
  const uid_t uid = geteuid();
  const std::string self = std::to_string(uid);
  auto own_overflow = [] { return IsOwnUserOrRoot(kDefaultOverflowUid); };
  // The process itself is not mapped either.
  const int unmapped = InUserNamespace(uid, "", [] { return IsOwnUserOrRoot(geteuid()); });
  if (unmapped == kNoNamespace) GTEST_SKIP() << "no user namespace can be made here";
  EXPECT_EQ(unmapped, kNo);
  // It is, and as the number of those who are not.
  EXPECT_EQ(InUserNamespace(uid, "65534 " + self + " 1", own_overflow), kNo);
  // It is, as itself, and as root.
  EXPECT_EQ(InUserNamespace(uid, "7 " + self + " 1", [] { return IsOwnUser(7); }), kYes);
  EXPECT_EQ(InUserNamespace(uid, "7 " + self + " 1", own_overflow), kNo);
  EXPECT_EQ(InUserNamespace(uid, "0 " + self + " 1", [] { return IsOwnUser(0) && IsRoot(0); }), kYes);
}

TEST(OwnUserTest, NobodyIsAUserWhereEverybodyIsMapped) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const pid_t child = fork();
  if (child == 0) {
    const bool become = setresuid(kDefaultOverflowUid, kDefaultOverflowUid, kDefaultOverflowUid) == 0;
    _exit(become && IsOwnUser(kDefaultOverflowUid) && !IsUnmappedUser(kDefaultOverflowUid) ? kYes : kNo);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kYes);
  EXPECT_EQ(InUserNamespace(kDefaultOverflowUid, "", [] { return IsOwnUser(geteuid()); }), kNo);
}

}  // namespace
}  // namespace taskd::worker
