#include "common/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/file_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/atomic_file.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
};

TEST_F(AtomicFileTest, ReplacesAFileAndLeavesNothingBesideIt) {
  for (const std::string& content : {std::string("old"), std::string(3 << 20, 'x'), std::string()}) {
    ASSERT_EQ(WriteFileAtomically(folder_ / "file", content), absl::OkStatus());
    EXPECT_EQ(Read("file"), content);
    EXPECT_THAT(Names(), ElementsAre("file"));
  }
  struct stat status;
  ASSERT_EQ(stat((folder_ / "file").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(AtomicFileTest, ReplacesALinkAndNotWhatItPointsTo) {
  std::ofstream(folder_ / "target") << "kept";
  fs::create_symlink("target", folder_ / "link");
  ASSERT_EQ(WriteFileAtomically(folder_ / "link", "new"), absl::OkStatus());
  EXPECT_EQ(Read("target"), "kept");
  EXPECT_FALSE(fs::is_symlink(folder_ / "link"));
}

TEST_F(AtomicFileTest, AnErrorNamesPathAndReasonAndChangesNothing) {
  fs::create_directory(folder_ / "folder");
  std::ofstream(folder_ / "folder/in it");
  absl::Status status = WriteFileAtomically(folder_ / "folder", "x");
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), (folder_ / "folder").string() + ": Is a directory");
  EXPECT_THAT(Names(), ElementsAre("folder"));
  status = WriteFileAtomically(folder_ / "missing/file", "x");
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing/file: No such file or directory"));
}

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldContent) {
  ASSERT_EQ(WriteFileAtomically(folder_ / "file", "old"), absl::OkStatus());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFileAtomically(folder_ / "file", std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(status.message()), HasSubstr("file: File too large"));
  EXPECT_EQ(Read("file"), "old");
  EXPECT_THAT(Names(), ElementsAre("file"));
}

TEST_F(AtomicFileTest, ASetNamesThePathFirst) {
  FileSet files;
  EXPECT_EQ(files.Add(folder_ / "missing/file", "x").message(),
            (folder_ / "missing/file").string() + " cannot be written: No such file or directory");
  fs::create_directory(folder_ / "folder");
  EXPECT_EQ(files.Add(folder_ / "folder", "x"), absl::OkStatus());
  EXPECT_EQ(files.Commit().message(), (folder_ / "folder").string() + " cannot be written: Is a directory");
}

}  // namespace
}  // namespace taskd
