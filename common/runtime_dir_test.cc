#include "common/runtime_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/testing/other_user.h"
#include "gmock/gmock.h"

namespace taskd {
namespace {

using ::testing::AllOf;
using testing::AsUser;
using ::testing::HasSubstr;
using testing::InOwnMounts;
using testing::kStranger;
using testing::kVictim;

// Its folder is XDG_RUNTIME_DIR as well.
class RuntimeDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-runtime-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    setenv("XDG_RUNTIME_DIR", name, 1);
  }
  void TearDown() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(root_);
  }

  std::string Make(const std::string& name, mode_t mode) {
    std::string path = root_ + name;
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  static mode_t Mode(const std::string& path) {
    struct stat info;
    return lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }
  static std::string Refusal(const std::string& path, bool create = true) {
    absl::StatusOr<UniqueFd> fd = OpenOwnDir(path, create);
    EXPECT_TRUE(absl::IsInvalidArgument(fd.status())) << fd.status();
    return std::string(fd.status().message());
  }

  std::string root_;
};

// A person's own choice, a team's folder with a link on the way, is taken; what anybody may have made below /tmp is not.
TEST_F(RuntimeDirTest, ANamedFolderIsCheckedWhereAnybodyMayWrite) {
  if (geteuid() != 0) GTEST_SKIP() << "this is not root";
  EXPECT_TRUE(InOwnMounts([&] {
    const bool prepared = mkdir("/run/team", 0755) == 0 && chown("/run/team", kStranger, kVictim) == 0 &&
                          chmod("/run/team", 0775) == 0 && symlink("team", "/run/link") == 0;
    return prepared &&
           AsUser(kStranger, [] { return mkdir("/tmp/theirs", 0777) == 0 && chmod("/tmp/theirs", 0777) == 0; }) &&
           AsUser(kVictim, [] {
             return mkdir("/tmp/mine", 0700) == 0 && symlink("mine", "/tmp/link") == 0 &&
                    OpenNamedDir("/run/link/a/ledger").ok() && OpenNamedDir("/tmp/mine/b/ledger").ok() &&
                    Mode("/tmp/mine/b/ledger") == 0700 && !OpenNamedDir("/tmp/theirs/ledger").ok() &&
                    access("/tmp/theirs/ledger", F_OK) != 0 && !OpenNamedDir("/tmp/link/ledger").ok() &&
                    symlink("b/ledger", "/tmp/mine/end") == 0 && !OpenNamedDir("/tmp/mine/end").ok() &&
                    symlink("b", "/tmp/mine/own") == 0 && OpenNamedDir("/tmp/mine/own/ledger").ok();
           });
  }));
}

// With a umask that leaves the group its bit: the next start must not refuse what this one makes.
TEST_F(RuntimeDirTest, WhatIsMadeOnTheWayToANamedFolderIsGood) {
  const mode_t before = umask(002);
  for (int start = 0; start < 2; ++start) {
    absl::StatusOr<UniqueFd> fd = OpenNamedDir(root_ + "/job/ledger");
    EXPECT_TRUE(fd.ok()) << fd.status();
  }
  umask(before);
  EXPECT_EQ(Mode(root_ + "/job"), 0755u);
}

TEST_F(RuntimeDirTest, MakesWhatIsMissingForThisUserAlone) {
  absl::StatusOr<UniqueFd> fd = OpenOwnDir(root_ + "/a/b/", true);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(Mode(root_ + "/a"), 0700u);
  EXPECT_EQ(Mode(root_ + "/a/b"), 0700u);
  struct stat opened, named;
  ASSERT_EQ(fstat(fd->get(), &opened), 0);
  ASSERT_EQ(stat((root_ + "/a/b").c_str(), &named), 0);
  EXPECT_EQ(opened.st_ino, named.st_ino);
  EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(OpenOwnDir(root_ + "/a/../a/./b", false).ok());
}

TEST_F(RuntimeDirTest, WhatIsMissingIsNotFoundUnlessItIsMade) {
  EXPECT_TRUE(absl::IsNotFound(OpenOwnDir(root_ + "/a/b", false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(OpenOwnDir("", true).status()));
}

TEST_F(RuntimeDirTest, RefusesWhatOthersMayWriteTo) {
  const std::string open = Make("/open", 0777);
  EXPECT_EQ(
      Refusal(open),
      absl::StrCat("folder '", open, "' belongs to user ", geteuid(), ", mode 0777: it has to belong to this user (",
                   geteuid(), ") or root and not be writable by group or others: 'chmod go-w ", open, "' mends that"));
  EXPECT_THAT(Refusal(open + "/below"), HasSubstr(open + "'"));
  EXPECT_THAT(Refusal(Make("/group", 0770)), HasSubstr("mode 0770"));
  EXPECT_TRUE(OpenOwnDir(Make("/readable", 0755), false).ok());
}

TEST_F(RuntimeDirTest, StickyFoldersMayHaveFoldersBelowButHoldNothing) {
  const std::string sticky = Make("/sticky", 01777);
  EXPECT_TRUE(OpenOwnDir(sticky + "/mine", true).ok());
  EXPECT_THAT(Refusal(sticky), HasSubstr("mode 1777"));
  EXPECT_THAT(Refusal("/tmp"), HasSubstr("'/tmp'"));
}

TEST_F(RuntimeDirTest, FollowsNoLinkBelowSharedFolders) {
  Make("/real", 0700);
  std::filesystem::create_directory_symlink(root_ + "/real", root_ + "/link");
  EXPECT_THAT(Refusal(root_ + "/link"), AllOf(HasSubstr(root_ + "/link'"), HasSubstr("symbolic link")));
  EXPECT_THAT(Refusal(root_ + "/link/below"), HasSubstr("symbolic link"));
  std::filesystem::create_directory_symlink(root_ + "/nowhere", root_ + "/dangling");
  EXPECT_THAT(Refusal(root_ + "/dangling"), HasSubstr("symbolic link"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/nowhere"));
}

TEST_F(RuntimeDirTest, FollowsTheSystemsOwnLinks) {
  if (!std::filesystem::is_symlink("/var/run")) GTEST_SKIP() << "/var/run is no link here";
  EXPECT_TRUE(OpenOwnDir("/var/run", false).ok());
}

TEST_F(RuntimeDirTest, RefusesFilesAndFifos) {
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(Refusal(root_ + "/fifo"), HasSubstr("Not a directory"));
}

TEST_F(RuntimeDirTest, RefusesOtherUsersFolders) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  const std::string theirs = Make("/theirs", 0700);
  ASSERT_EQ(chown(theirs.c_str(), kStranger, kStranger), 0);
  EXPECT_THAT(Refusal(theirs), AllOf(HasSubstr("belongs to user 2002"), HasSubstr("this user (0)")));
  EXPECT_THAT(Refusal(theirs + "/below"), HasSubstr("belongs to user 2002"));
  // Root's are good for everybody.
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  const std::string roots = Make("/roots", 0755);
  EXPECT_TRUE(AsUser(kVictim, [&] { return OpenOwnDir(roots, false).ok(); }));
  EXPECT_FALSE(AsUser(kVictim, [&] { return OpenOwnDir(theirs, false).ok(); }));
}

TEST_F(RuntimeDirTest, PrefersTheSessionsFolder) {
  EXPECT_EQ(*RuntimeDir(), root_ + "/taskd");
  EXPECT_EQ(*RuntimeDir("a/b"), root_ + "/taskd/a/b");
  EXPECT_EQ(Mode(root_ + "/taskd/a/b"), 0700u);
  EXPECT_EQ(RuntimeDirCandidates().front(), root_ + "/taskd");
  EXPECT_TRUE(absl::IsInvalidArgument(RuntimeDir("a/../../b").status()));
}

TEST_F(RuntimeDirTest, WhatIsThereAndBreaksTheRuleIsAnError) {
  Make("/taskd", 0777);
  EXPECT_THAT(RuntimeDir().status().message(), HasSubstr(root_ + "/taskd' belongs"));
  ASSERT_EQ(rmdir((root_ + "/taskd").c_str()), 0);
  ASSERT_TRUE(RuntimeDir("jobs").ok());
  ASSERT_EQ(chmod((root_ + "/taskd/jobs").c_str(), 0777), 0);
  EXPECT_THAT(RuntimeDir("jobs").status().message(), HasSubstr("taskd/jobs'"));
}

TEST_F(RuntimeDirTest, OtherPlacesInOrder) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(InOwnMounts([] { return *RuntimeDir() == "/tmp/taskd-0" && Mode("/tmp/taskd-0") == 0700; }));
  EXPECT_TRUE(InOwnMounts([] { return mkdir("/run/user/0", 0700) == 0 && *RuntimeDir() == "/run/user/0/taskd"; }));
  // Not absolute, empty, missing, longer than a socket below could be.
  for (const std::string& xdg :
       {std::string("run"), std::string(), std::string("/run/no"), "/run/" + std::string(80, 'x')}) {
    EXPECT_TRUE(InOwnMounts([&] {
      setenv("XDG_RUNTIME_DIR", xdg.c_str(), 1);
      if (absl::StartsWith(xdg, "/run/x")) mkdir(xdg.c_str(), 0700);
      return *RuntimeDir() == "/tmp/taskd-0";
    })) << xdg;
  }
  // Who searches looks where another choice was made, too.
  EXPECT_TRUE(InOwnMounts([&] {
    return RuntimeDirCandidates() == std::vector<std::string>{"/tmp/taskd-0"} && mkdir("/run/user/0", 0700) == 0 &&
           RuntimeDirCandidates() == std::vector<std::string>{"/run/user/0/taskd", "/tmp/taskd-0"};
  }));
}

// sudo -E keeps the other user's variable.
TEST_F(RuntimeDirTest, PassesOverAnotherUsersSession) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(InOwnMounts([] {
    mkdir("/run/user/2001", 0700);
    setenv("XDG_RUNTIME_DIR", "/run/user/2001", 1);
    return chown("/run/user/2001", kVictim, kVictim) == 0 && *RuntimeDir() == "/tmp/taskd-0" &&
           !std::filesystem::exists("/run/user/2001/taskd");
  }));
}

TEST_F(RuntimeDirTest, PassesOverAReadOnlySession) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(InOwnMounts([] {
    mkdir("/run/user/0", 0700);
    return mount("none", "/run/user/0", "tmpfs", MS_RDONLY, "mode=700") == 0 && *RuntimeDir() == "/tmp/taskd-0";
  }));
}

TEST_F(RuntimeDirTest, SharedMemoryIsTheLastResort) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  const auto shared_memory = [](const char* options) {
    return mount("none", "/dev/shm", "tmpfs", 0, options) == 0 && mount("none", "/tmp", "tmpfs", MS_RDONLY, "") == 0;
  };
  EXPECT_TRUE(InOwnMounts([&] {
    if (!shared_memory("mode=1777") || *RuntimeDir("jobs") != "/dev/shm/taskd-0/jobs") return false;
    return Mode("/dev/shm/taskd-0") == 0700 && RuntimeDirCandidates().back() == "/dev/shm/taskd-0" &&
           absl::StartsWith(*MakeFreshDir(), "/dev/shm/taskd-new-");
  }));
  EXPECT_TRUE(InOwnMounts([&] {  // one that others could replace is none
    return shared_memory("mode=777") &&
           absl::StrContains(RuntimeDir().status().message(), "folder '/tmp/taskd-0' cannot be made: Read-only") &&
           absl::StrContains(MakeFreshDir().status().message(), "/tmp/taskd-new-");
  }));
  EXPECT_TRUE(InOwnMounts([&] {  // nor a stranger's
    return shared_memory("mode=1777") && AsUser(kStranger, [] { return mkdir("/dev/shm/taskd-2001", 0755) == 0; }) &&
           AsUser(kVictim, [] {
             return absl::StrContains(RuntimeDir().status().message(), "folder '/dev/shm/taskd-2001' belongs to user");
           });
  }));
}

TEST_F(RuntimeDirTest, StrangersFolderInTmpIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  auto refused = [] {
    return absl::StrContains(RuntimeDir().status().message(), "folder '/tmp/taskd-2001'") && MakeFreshDir().ok();
  };
  EXPECT_TRUE(InOwnMounts([&] {
    return AsUser(kStranger, [] { return mkdir("/tmp/taskd-2001", 0700) == 0; }) &&
           chmod("/tmp/taskd-2001", 0777) == 0 && AsUser(kVictim, refused);
  }));
  EXPECT_TRUE(InOwnMounts([&] {
    return AsUser(kVictim, [] { return mkdir("/tmp/mine", 0700) == 0; }) &&
           AsUser(kStranger, [] { return symlink("/tmp/mine", "/tmp/taskd-2001") == 0; }) && AsUser(kVictim, refused);
  }));
}

TEST_F(RuntimeDirTest, PassesOverATmpWithoutStickyBit) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  const auto volumes = [](const char* shared_memory) {
    return chmod("/tmp", 0777) == 0 && mount("none", "/dev/shm", "tmpfs", 0, shared_memory) == 0;
  };
  EXPECT_TRUE(InOwnMounts([&] {
    return volumes("mode=1777") && *RuntimeDir() == "/dev/shm/taskd-0" && !std::filesystem::exists("/tmp/taskd-0") &&
           RuntimeDirCandidates() == std::vector<std::string>{"/dev/shm/taskd-0"} &&
           absl::StartsWith(*MakeFreshDir(), "/dev/shm/taskd-new-");
  }));
  EXPECT_TRUE(InOwnMounts([&] {
    return volumes("mode=777") && absl::StrContains(RuntimeDir().status().message(), "'chmod +t /tmp'") &&
           absl::StrContains(MakeFreshDir().status().message(), "'chmod +t /tmp'") && RuntimeDirCandidates().empty();
  }));
  // Who names a path there has chosen so: a volume of a container.
  EXPECT_TRUE(InOwnMounts(
      [] { return chmod("/tmp", 0777) == 0 && OpenOwnDir("/tmp/mine", true).ok() && !OpenOwnDir("/tmp", true).ok(); }));
}

TEST_F(RuntimeDirTest, FreshFoldersAreThisUsersAlone) {
  absl::StatusOr<std::string> dir = MakeFreshDir();
  ASSERT_TRUE(dir.ok()) << dir.status();
  EXPECT_THAT(*dir, HasSubstr("/taskd-new-"));
  EXPECT_EQ(Mode(*dir), 0700u);
  EXPECT_TRUE(OpenOwnDir(*dir, false).ok());
  std::filesystem::remove(*dir);
}

}  // namespace
}  // namespace taskd
