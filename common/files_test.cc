#include "common/files.h"

#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/atomic_file.h"
#include "common/log_file.h"
#include "common/testing/other_user.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/taskd-files-XXXXXX";
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "file") << "one\ntwo\n";
    ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    fs::create_symlink("file", folder_ / "link");
    fs::create_symlink("/dev/zero", folder_ / "zero");
    fs::create_directory(folder_ / "folder");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Read(const std::string& name) const { return ReadFile(folder_ / name, 100).value_or("none"); }
  bool IsRefused(const std::string& name, const FileRules& rules = {}) const {
    return absl::IsFailedPrecondition(ReadFile(folder_ / name, 100, rules).status()) &&
           absl::IsFailedPrecondition(OpenFile(folder_ / name, O_WRONLY, rules).status()) &&
           absl::IsFailedPrecondition(OpenOrCreateFile(folder_ / name, O_WRONLY, 0600, rules).status()) &&
           absl::IsAlreadyExists(CreateFile(folder_ / name, 0600, rules).status());
  }

  fs::path folder_;
};

// Without the rules these open, wait for ever, or give bytes without end.
TEST_F(FilesTest, TakesRegularFilesOnly) {
  EXPECT_EQ(Read("file"), "one\ntwo\n");
  for (const char* name : {"pipe", "link", "zero", "folder"}) EXPECT_TRUE(IsRefused(name)) << name;
  for (const char* name : {"pipe", "zero", "folder"}) EXPECT_TRUE(IsRefused(name, {.follow_links = true})) << name;
  EXPECT_EQ(ReadFile(folder_ / "link", 100, {.follow_links = true}).value(), "one\ntwo\n");
  EXPECT_TRUE(absl::IsNotFound(ReadFile(folder_ / "missing", 100).status()));
  EXPECT_EQ(ReadFile(folder_ / "pipe", 100, {.shown = "--file"}).status().message(), "--file: is not a regular file");
}

TEST_F(FilesTest, AHardLinkIsNotWrittenThrough) {
  fs::create_hard_link(folder_ / "file", folder_ / "name");
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenFile(folder_ / "name", O_WRONLY).status()));
  EXPECT_EQ(Read("name"), "one\ntwo\n");
}

TEST_F(FilesTest, WhereAskedLinksOfThisUserAreFollowed) {
  const FileRules rules = {.follow_own_links = true};
  EXPECT_TRUE(OpenFile(folder_ / "link", O_WRONLY, rules).ok());
  EXPECT_EQ(ReadFile(folder_ / "link", 100, rules).value_or("none"), "one\ntwo\n");
  EXPECT_TRUE(IsRefused("zero", rules));
  fs::create_symlink("missing", folder_ / "dangling");
  EXPECT_TRUE(absl::IsNotFound(OpenOrCreateFile(folder_ / "dangling", O_WRONLY, 0600, rules).status()));
  fs::create_hard_link(folder_ / "file", folder_ / "name");
  EXPECT_TRUE(OpenFile(folder_ / "name", O_WRONLY, rules).ok());
  if (geteuid() != 0) GTEST_SKIP() << "this is not root";
  ASSERT_EQ(lchown((folder_ / "link").c_str(), testing::kStranger, testing::kStranger), 0);
  EXPECT_TRUE(IsRefused("link", rules));
  ASSERT_EQ(chown((folder_ / "name").c_str(), testing::kStranger, testing::kStranger), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenFile(folder_ / "name", O_WRONLY, rules).status()));
}

TEST_F(FilesTest, ReadsNoMoreThanTheLimit) {
  EXPECT_EQ(ReadFile(folder_ / "file", 8).value(), "one\ntwo\n");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadFile(folder_ / "file", 7).status()));
  absl::StatusOr<UniqueFd> file = OpenFile(folder_ / "file", O_RDONLY);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ReadOpened(file->get(), 100, "file", 4).value(), "two\n");
  EXPECT_EQ(ReadOpened(file->get(), 100, "file", 9).value(), "");
}

TEST_F(FilesTest, AFileThatIsCreatedIsNew) {
  const UniqueFd folder(OpenFolder(folder_).value());
  absl::StatusOr<UniqueFd> file = CreateFile("new", 0640, {.folder = folder.get()});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(WriteAll(file->get(), "text"), 0);
  EXPECT_EQ(Read("new"), "text");
  file = OpenOrCreateFile("log", O_WRONLY | O_APPEND, 0640, {.folder = folder.get()});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(WriteAll(file->get(), "a"), 0);
  file = OpenOrCreateFile("log", O_WRONLY | O_APPEND, 0640, {.folder = folder.get()});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(WriteAll(file->get(), "b"), 0);
  EXPECT_EQ(Read("log"), "ab");
  // A dangling link's target is not made.
  fs::create_symlink("elsewhere", folder_ / "dangling");
  EXPECT_FALSE(OpenOrCreateFile("dangling", O_WRONLY, 0600, {.folder = folder.get(), .follow_links = true}).ok());
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

TEST_F(FilesTest, AFolderIsOne) {
  fs::create_directory_symlink("folder", folder_ / "to folder");
  EXPECT_TRUE(OpenFolder(folder_ / "folder").ok());
  EXPECT_TRUE(OpenFolder(folder_ / "to folder", {.follow_links = true}).ok());
  EXPECT_THAT(std::string(OpenFolder(folder_ / "to folder").status().message()), HasSubstr("is a symbolic link"));
  for (const char* name : {"file", "pipe"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(OpenFolder(folder_ / name).status())) << name;
  }
}

TEST_F(FilesTest, WhereAskedAFileIsThisUsersOwn) {
  EXPECT_TRUE(ReadFile(folder_ / "file", 100, {.only_own = true}).ok());
  fs::permissions(folder_ / "file", fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(IsRefused("file", {.only_own = true}));
  if (geteuid() != 0) GTEST_SKIP() << "this is not root";
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_TRUE(testing::AsUser(testing::kStranger, [&] {
    std::ofstream(folder_ / "theirs") << "text";
    return ReadFile(folder_ / "theirs", 100, {.only_own = true}).ok();
  }));
  EXPECT_EQ(Read("theirs"), "text");
  EXPECT_TRUE(IsRefused("theirs", {.only_own = true}));
  EXPECT_TRUE(testing::AsUser(testing::kVictim, [&] { return IsRefused("theirs", {.only_own = true}); }));
}

TEST_F(FilesTest, ReadsWhatTheKernelMakes) {
  EXPECT_THAT(ReadSystemFile("/proc/self/status"), HasSubstr("Name:"));
  EXPECT_EQ(FirstLineOfSystemFile("/proc/self/comm") + "\n", ReadSystemFile("/proc/self/comm"));
  EXPECT_THAT(ReadSystemFile("/proc/self/no such file"), IsEmpty());
}

// Shares that show every mode as 0777 are in use.
TEST_F(FilesTest, ALogIsAppendedToThisUsersFileWhateverItsMode) {
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  std::ofstream(folder_ / "a.log") << "mine\n";
  ASSERT_EQ(chmod((folder_ / "a.log").c_str(), 0777), 0);
  EXPECT_EQ(LogFile(folder_, "a.log").Write("mine\n"), absl::OkStatus());
  EXPECT_EQ(Read("a.log"), "mine\nmine\n");
}

TEST_F(FilesTest, ALogIsNotAppendedToAnotherUsersFile) {
  if (geteuid() != 0) GTEST_SKIP() << "this is not root";
  std::ofstream(folder_ / "a.log") << "theirs\n";
  ASSERT_EQ(chown((folder_ / "a.log").c_str(), testing::kStranger, testing::kStranger), 0);
  for (const mode_t mode : {0777, 01777, 0770}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    EXPECT_THAT(std::string(LogFile(folder_, "a.log").Write("mine\n").message()), HasSubstr("belongs to user 2002"));
  }
  EXPECT_EQ(Read("a.log"), "theirs\n");
  // As where a server makes every file of root's a stranger's.
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  setfsuid(testing::kStranger);
  EXPECT_EQ(LogFile(folder_, "a.log").Write("mine\n"), absl::OkStatus());
  setfsuid(0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_EQ(LogFile(folder_, "a.log").Write("mine\n"), absl::OkStatus()) << "nobody else could have put it there";
}

int ticks[2];  // a pipe: a byte for each signal

// The pipe's reader takes a piece for each signal, so the writer is interrupted again and again while it is blocked.
TEST(WriteAllTest, GoesOnAfterASignalAndAShortWrite) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(pipe(ticks), 0);
  const std::string text(1 << 18, 'x');
  const pid_t reader = fork();
  if (reader == 0) {
    close(ends[1]);
    close(ticks[1]);
    size_t sum = 0;
    char piece[4096];
    ssize_t got = 0;
    do {
      got = read(ticks[0], piece, 1);  // 0: all is written
      got = read(ends[0], piece, sizeof(piece));
      sum += static_cast<size_t>(got);
    } while (got > 0);
    _exit(sum == text.size() ? 0 : 1);
  }
  close(ends[0]);
  struct sigaction handler = {}, before;
  handler.sa_handler = [](int) { static_cast<void>(!write(ticks[1], "x", 1)); };  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGALRM, &handler, &before), 0);
  const itimerval often = {{0, 1000}, {0, 1000}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  const int error = WriteAll(ends[1], text);
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  close(ends[1]);
  close(ticks[1]);
  int status = 0;
  ASSERT_EQ(waitpid(reader, &status, 0), reader);
  close(ticks[0]);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(FilesTest, AFullDiskIsAnError) {
  absl::StatusOr<UniqueFd> file = CreateFile(folder_ / "new", 0600);
  ASSERT_TRUE(file.ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int error = WriteAll(file->get(), std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(error, EFBIG);
}

TEST_F(FilesTest, AFreshFileGoesWhereItIsNotCommitted) {
  {
    absl::StatusOr<FreshFile> fresh = FreshFile::Create(folder_ / "file", 0600);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_TRUE(fresh->Write("new").ok());
    EXPECT_TRUE(fs::exists(folder_ / fresh->fresh_name()));
    EXPECT_EQ(Read("file"), "one\ntwo\n");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 5);
}

}  // namespace
}  // namespace taskd
