#include "common/switch_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include "common/testing/deadline.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

namespace fs = std::filesystem;

class SwitchFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-switch-file-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ / "profilingSwitch";
  }
  void TearDown() override {
    watcher_.reset();
    fs::remove_all(folder_);
  }

  void Watch() {
    watcher_ = std::make_unique<SwitchFileWatcher>(path_, [this](const SwitchChange& change) {
      std::lock_guard lock(mutex_);
      changes_.push_back(change);
      changed_.notify_all();
    });
  }

  // Replaces the file in one go, as a careful writer does.
  void Put(const std::string& text) {
    std::string temporary = path_.string() + ".new";
    std::ofstream(temporary) << text;
    fs::rename(temporary, path_);
  }

  // The n-th change seen, counted from 1.
  SwitchChange WaitFor(size_t n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(testing::WaitFor(changed_, lock, [&] { return changes_.size() >= n; }));
    return changes_.size() >= n ? changes_[n - 1] : SwitchChange{};
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return changes_.size();
  }

  static SwitchChange Step(bool on) {
    SwitchChange change;
    change[static_cast<int>(SwitchKind::kStep)] = on;
    return change;
  }

  fs::path folder_, path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SwitchChange> changes_;
  std::unique_ptr<SwitchFileWatcher> watcher_;
};

TEST_F(SwitchFileTest, TellsWhatIsThereAndEachChange) {
  Put(R"({"Step":"on"})");
  Watch();
  EXPECT_EQ(WaitFor(1), Step(true));
  Put(R"({"Step":"off"})");
  EXPECT_EQ(WaitFor(2), Step(false));
  std::ofstream(path_) << R"({"Step":"on"})";  // in place
  EXPECT_EQ(WaitFor(3), Step(true));
}

TEST_F(SwitchFileTest, BrokenEqualOrMissingContentChangesNothing) {
  Put(R"({"Step":"on"})");
  Watch();
  WaitFor(1);
  Put("{broken");
  Put(R"({"Step":"ON"})");
  Put(R"( {"Step" : "on"} )");
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  fs::remove(path_);
  Put(R"({"Step":"off"})");
  EXPECT_EQ(WaitFor(2), Step(false));
  EXPECT_EQ(count(), 2u);
}

TEST_F(SwitchFileTest, FolderMayComeLater) {
  path_ = folder_ / "later" / "profilingSwitch";
  Watch();
  fs::create_directory(folder_ / "later");
  Put(R"({"Step":"on"})");
  EXPECT_EQ(WaitFor(1), Step(true));
}

TEST_F(SwitchFileTest, FollowsKubernetesLinks) {
  auto version = [&](const char* name, const char* text) {
    fs::create_directory(folder_ / name);
    std::ofstream(folder_ / name / "profilingSwitch") << text;
    fs::remove(folder_ / "..data_tmp");
    fs::create_symlink(name, folder_ / "..data_tmp");
    fs::rename(folder_ / "..data_tmp", folder_ / "..data");
  };
  version("..1", R"({"Step":"on"})");
  fs::create_symlink("..data/profilingSwitch", path_);
  Watch();
  EXPECT_EQ(WaitFor(1), Step(true));
  version("..2", R"({"Step":"off"})");
  EXPECT_EQ(WaitFor(2), Step(false));
}

TEST_F(SwitchFileTest, StopsWhileTheFolderIsBusy) {
  Watch();
  for (int i = 0; i < 100; ++i) Put(i % 2 == 0 ? R"({"Step":"on"})" : R"({"Step":"off"})");
  watcher_.reset();
  size_t seen = count();
  Put(R"({"FP":"on"})");
  EXPECT_EQ(count(), seen);
}

}  // namespace
}  // namespace taskd
