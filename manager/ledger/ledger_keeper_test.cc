#include "manager/ledger/ledger_keeper.h"

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::taskd::testing::kHangLimit;
using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kRetry{1};

// A status of its own: Debian's absl_status counts references where ThreadSanitizer cannot see it, so two threads' copies
// of one look like a race.
absl::Status Anew(const absl::Status& status) { return {status.code(), status.message()}; }

// A folder as the test wants it.
struct Folder {
  std::mutex mutex;
  std::condition_variable changed;
  bool answers = true;
  absl::Status opens, saves;  // what it says
  std::string kept;
  int opened = 0, tried = 0;
  std::vector<std::string> saved;
  bool closed = false;

  void Set(const std::function<void()>& change) {
    std::lock_guard lock(mutex);
    change();
    changed.notify_all();
  }
  bool Await(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return taskd::testing::WaitFor(changed, lock, condition);
  }
};

class FakeStore final : public LedgerStore {
 public:
  explicit FakeStore(std::shared_ptr<Folder> folder) : folder_(std::move(folder)) {}
  ~FakeStore() override {
    folder_->Set([this] { folder_->closed = true; });
  }
  absl::StatusOr<std::string> Open() override {
    std::unique_lock lock(folder_->mutex);
    ++folder_->opened;
    folder_->changed.notify_all();
    folder_->changed.wait(lock, [this] { return folder_->answers; });
    if (!folder_->opens.ok()) return Anew(folder_->opens);
    return folder_->kept;
  }
  absl::Status Save(const std::string& text) override {
    std::unique_lock lock(folder_->mutex);
    ++folder_->tried;
    folder_->changed.notify_all();
    folder_->changed.wait(lock, [this] { return folder_->answers; });
    if (folder_->saves.ok()) folder_->saved.push_back(text);
    folder_->changed.notify_all();
    return Anew(folder_->saves);
  }

 private:
  const std::shared_ptr<Folder> folder_;
};

class LedgerKeeperTest : public ::testing::Test {
 protected:
  std::unique_ptr<LedgerKeeper> Make() {
    return std::make_unique<LedgerKeeper>(std::make_unique<FakeStore>(folder_), "/ledger", kRetry);
  }
  const std::shared_ptr<Folder> folder_ = std::make_shared<Folder>();
};

TEST_F(LedgerKeeperTest, HandsOverWhatWasKeptAndWritesTheNewest) {
  folder_->kept = "before";
  auto keeper = Make();
  EXPECT_EQ(keeper->Await(kHangLimit), "before");
  keeper->Save("one");
  ASSERT_TRUE(folder_->Await([&] { return folder_->saved.size() == 1; }));
  keeper->Save("last");
  keeper.reset();
  EXPECT_THAT(folder_->saved, ElementsAre("one", "last"));
  EXPECT_TRUE(folder_->closed);
}

TEST_F(LedgerKeeperTest, NothingIsWrittenBeforeSomebodyHasWhatWasKept) {
  folder_->answers = false;
  folder_->kept = "before";
  auto keeper = Make();
  EXPECT_EQ(keeper->Await(std::chrono::milliseconds(1)), std::nullopt);
  keeper->Save("without what was before");
  std::string taken;
  folder_->Set([&] { folder_->answers = true; });
  keeper->OnLate([&](const std::string& kept) { folder_->Set([&] { taken = kept; }); });
  ASSERT_TRUE(folder_->Await([&] { return !taken.empty(); }));
  EXPECT_EQ(taken, "before");
  EXPECT_TRUE(folder_->saved.empty());
  // One that is given while the former is thrown away may go with it; the next one is written.
  EXPECT_TRUE(taskd::testing::WaitUntil([&] {
    keeper->Save("with it");
    const std::lock_guard lock(folder_->mutex);
    return !folder_->saved.empty();
  }));
  keeper.reset();
  ASSERT_FALSE(folder_->saved.empty());
  EXPECT_EQ(folder_->saved.front(), "with it");
}

TEST_F(LedgerKeeperTest, AFolderThatDoesNotAnswerDelaysNobody) {
  folder_->answers = false;
  auto keeper = Make();
  ASSERT_TRUE(folder_->Await([&] { return folder_->opened == 1; }));
  for (int i = 0; i < 1000; ++i) keeper->Save("text");
  keeper.reset();  // although it still hangs
  EXPECT_FALSE(folder_->closed);
  folder_->Set([&] { folder_->answers = true; });
  EXPECT_TRUE(folder_->Await([&] { return folder_->closed; }));
  EXPECT_TRUE(folder_->saved.empty());
}

TEST_F(LedgerKeeperTest, TriesAgainUntilItOpens) {
  folder_->opens = absl::UnavailableError("No space left on device");
  auto keeper = Make();
  ASSERT_TRUE(folder_->Await([&] { return folder_->opened >= 3; }));
  folder_->Set([&] { folder_->opens = absl::OkStatus(); });
  EXPECT_EQ(keeper->Await(kHangLimit), "");
}

TEST_F(LedgerKeeperTest, WhatIsOfALaterReleaseIsLeftAlone) {
  folder_->opens = absl::FailedPreconditionError("it is of a later release (schema 9)");
  auto keeper = Make();
  EXPECT_EQ(keeper->Await(kHangLimit), std::nullopt);
  keeper->Save("text");
  keeper.reset();
  EXPECT_EQ(folder_->opened, 1);
  EXPECT_EQ(folder_->tried, 0);
}

TEST_F(LedgerKeeperTest, GoesOnAfterAFullDisk) {
  folder_->saves = absl::UnavailableError("No space left on device");
  auto keeper = Make();
  ASSERT_EQ(keeper->Await(kHangLimit), "");
  keeper->Save("lost");
  ASSERT_TRUE(folder_->Await([&] { return folder_->tried == 1; }));
  folder_->Set([&] { folder_->saves = absl::OkStatus(); });
  keeper->Save("kept");
  keeper.reset();
  EXPECT_EQ(folder_->saved.back(), "kept");
}

TEST_F(LedgerKeeperTest, StopsWhenAnotherOneHasTakenIt) {
  folder_->saves = absl::AbortedError("another manager has it");
  auto keeper = Make();
  ASSERT_EQ(keeper->Await(kHangLimit), "");
  keeper->Save("text");
  ASSERT_TRUE(folder_->Await([&] { return folder_->closed; }));
  keeper->Save("text");
  keeper.reset();
  EXPECT_EQ(folder_->tried, 1);
}

}  // namespace
}  // namespace taskd::manager
