#include "manager/switch/latest_writer.h"

#include <vector>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kShort{20};

// A storage that hangs until it is told to go on.
class Storage {
 public:
  absl::Status Write(int value) {
    std::unique_lock lock(mutex_);
    begun_.push_back(value);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hangs_; });
    written_.push_back(value);
    changed_.notify_all();
    return status_;
  }
  void Hang() {
    std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  void GoOn() {
    std::lock_guard lock(mutex_);
    hangs_ = false;
    changed_.notify_all();
  }
  void Fail(absl::Status status) {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  void WaitForWrites(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(testing::WaitFor(changed_, lock, [&] { return begun_.size() >= count; }));
  }
  // False: it took too long.
  bool WaitForMoreThan(size_t written) {
    std::unique_lock lock(mutex_);
    return testing::WaitFor(changed_, lock, [&] { return written_.size() > written; });
  }
  std::vector<int> written() {
    std::lock_guard lock(mutex_);
    return written_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
  absl::Status status_;
  std::vector<int> begun_, written_;
};

TEST(LatestWriterTest, SavedMeansWritten) {
  Storage storage;
  LatestWriter<int> writer([&](int value) { return storage.Write(value); }, testing::kHangLimit);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(writer.Save(i).ok());
    EXPECT_EQ(storage.written().back(), i);
  }
}

TEST(LatestWriterTest, AnErrorIsTheCallersAndTheNextWriteIsTriedAgain) {
  Storage storage;
  storage.Fail(absl::DataLossError("disk full"));
  LatestWriter<int> writer([&](int value) { return storage.Write(value); }, testing::kHangLimit);
  EXPECT_TRUE(absl::IsDataLoss(writer.Save(1)));
  storage.Fail(absl::OkStatus());
  EXPECT_TRUE(writer.Save(1).ok());
}

TEST(LatestWriterTest, AStorageThatHangsKeepsNobodyAndTheNewestIsWrittenWhenItGoesOn) {
  Storage storage;
  storage.Hang();
  {
    LatestWriter<int> writer([&](int value) { return storage.Write(value); }, kShort);
    EXPECT_TRUE(absl::IsUnavailable(writer.Save(1)));
    storage.WaitForWrites(1);
    for (int i = 2; i <= 1000; ++i) EXPECT_TRUE(absl::IsUnavailable(writer.Save(i)));
    EXPECT_TRUE(storage.written().empty());
    storage.GoOn();
  }
  EXPECT_THAT(storage.written(), ElementsAre(1, 1000)) << "in order, and no stale one after a newer one";
}

TEST(LatestWriterTest, OnceTheStorageGoesOnSavedMeansWrittenAgain) {
  Storage storage;
  storage.Hang();
  LatestWriter<int> writer([&](int value) { return storage.Write(value); }, kShort);
  EXPECT_FALSE(writer.Save(1).ok());
  storage.GoOn();
  // Until its thread comes to write, it is as if the storage still hung.
  size_t written = 0;
  absl::Status status;
  do {
    written = storage.written().size();
    status = writer.Save(2);
  } while (!status.ok() && storage.WaitForMoreThan(written));
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(storage.written().back(), 2);
}

}  // namespace
}  // namespace taskd::manager
