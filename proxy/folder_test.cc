#include "proxy/folder.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using ::testing::HasSubstr;
using testing::ReadFile;
using testing::TempDir;
using ::testing::UnorderedElementsAre;
using testing::WriteFile;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::filesystem::create_directories(temp_ / "in");
    WriteFile(temp_ / "outside", "outside\n");
    folder_ = *OpenFolder(AT_FDCWD, temp_ / "in", "in");
  }
  absl::Status Open(const std::string& name, int flags = O_RDWR | O_APPEND) {
    return OpenRegular(folder_.get(), name, flags, name).status();
  }

  TempDir temp_;
  UniqueFd folder_;
};

TEST_F(FolderTest, OpensNothingButFiles) {
  WriteFile(temp_ / "in/file", "text");
  ASSERT_EQ(mkfifo((temp_ / "in/fifo").c_str(), 0600), 0);
  std::filesystem::create_directories(temp_ / "in/folder");
  std::filesystem::create_symlink(temp_ / "outside", temp_ / "in/link");
  UniqueFd bound(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  (temp_ / "in/socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(Open("file").ok());
  EXPECT_TRUE(absl::IsNotFound(Open("nothing")));
  for (const char* name : {"fifo", "folder", "link", "socket"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(Open(name))) << name << Open(name);
    EXPECT_TRUE(absl::IsFailedPrecondition(Open(name, O_RDONLY))) << name;
    if (std::string_view(name) != "folder") {
      EXPECT_FALSE(OpenFolder(folder_.get(), name, name).ok()) << name;
    }
  }
  EXPECT_THAT(std::string(Open("link").message()), HasSubstr("symbolic link"));
}

TEST_F(FolderTest, NeverWritesWhatHasAnotherName) {
  std::filesystem::create_hard_link(temp_ / "outside", temp_ / "in/file");
  EXPECT_TRUE(absl::IsFailedPrecondition(Open("file")));
  EXPECT_TRUE(Open("file", O_RDONLY).ok());
}

TEST_F(FolderTest, ReplacesAFileWhateverIsInTheWay) {
  const std::string fresh = temp_ / "in/.file.new";
  for (const char* way : {"nothing", "fifo", "link", "dangling", "file", "folder"}) {
    SCOPED_TRACE(way);
    std::filesystem::remove_all(fresh);
    const std::string what = way;
    if (what == "fifo") {
      ASSERT_EQ(mkfifo(fresh.c_str(), 0600), 0);
    }
    if (what == "link") std::filesystem::create_symlink(temp_ / "outside", fresh);
    if (what == "dangling") std::filesystem::create_symlink(temp_ / "made", fresh);
    if (what == "file") WriteFile(fresh, "left by somebody, and longer than what comes");
    if (what == "folder") std::filesystem::create_directories(fresh);
    ASSERT_TRUE(ReplaceFile(folder_.get(), ".file", what, "path").ok());
    EXPECT_EQ(ReadFile(temp_ / "in/.file"), what);
  }
  EXPECT_EQ(ReadFile(temp_ / "outside"), "outside\n");
  EXPECT_FALSE(std::filesystem::exists(temp_ / "made"));
}

TEST_F(FolderTest, LeavesNothingBehindWhenItCannotReplace) {
  std::filesystem::create_directories(temp_ / "in/.file");
  EXPECT_THAT(std::string(ReplaceFile(folder_.get(), ".file", "text", "the path").message()), HasSubstr("the path"));
  std::vector<std::string> names;
  ASSERT_TRUE(ListFolder(folder_.get(), [&](const char* name) {
                names.emplace_back(name);
                return true;
              }).ok());
  EXPECT_THAT(names, UnorderedElementsAre(".file"));
}

TEST_F(FolderTest, ADescriptorMeansTheFolderThatWasChecked) {
  std::filesystem::rename(temp_ / "in", temp_ / "moved");
  std::filesystem::create_directories(temp_ / "elsewhere");
  std::filesystem::create_directory_symlink(temp_ / "elsewhere", temp_ / "in");
  ASSERT_TRUE(ReplaceFile(folder_.get(), ".file", "text", "path").ok());
  EXPECT_EQ(ReadFile(temp_ / "moved/.file"), "text");
  EXPECT_TRUE(std::filesystem::is_empty(temp_ / "elsewhere"));
}

}  // namespace
}  // namespace taskd::proxy
