#include "manager/switch/state_db.h"

#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StateDbTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-state-db-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    parent_ = name;
    folder_ = parent_ / "a" / "state";
  }
  void TearDown() override { fs::remove_all(parent_); }

  std::unique_ptr<StateDb> Open(const std::string& job = "ns/job", const std::string& task = "task") {
    auto db = StateDb::Open(folder_.string() + "/", {job, task, 0, 0});
    EXPECT_TRUE(db.ok()) << db.status();
    return db.ok() ? *std::move(db) : nullptr;
  }

  static KeptState Some(uint64_t revision) {
    KeptState state;
    state.wanted = {revision, 3, 5};
    state.last_file = SwitchChange{true, false, std::nullopt, std::nullopt, true};
    return state;
  }

  fs::path parent_, folder_;
};

TEST_F(StateDbTest, BeginsEmptyAndRemembers) {
  EXPECT_EQ(Open()->Load().value(), KeptState{});
  ASSERT_TRUE(Open()->Save(Some(7)).ok());
  EXPECT_EQ(Open()->Load().value(), Some(7));
  KeptState with_clusterd = Some(uint64_t{1} << 62);
  with_clusterd.last_clusterd = SwitchChange{};
  with_clusterd.last_file.reset();
  ASSERT_TRUE(Open()->Save(with_clusterd).ok());
  EXPECT_EQ(Open()->Load().value(), with_clusterd);
  struct stat status;
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(StateDbTest, JobsMayHaveAFolderOneAfterTheOther) {
  ASSERT_TRUE(Open("ns/one", "")->Save(Some(1)).ok());
  ASSERT_TRUE(Open("ns/two", "")->Save(Some(2)).ok());
  ASSERT_TRUE(Open("ns/one", "'; DROP TABLE wanted_state; --")->Save(Some(3)).ok());
  EXPECT_EQ(Open("ns/one", "")->Load()->wanted.revision, 1u);
  EXPECT_EQ(Open("ns/two", "")->Load()->wanted.revision, 2u);
  EXPECT_EQ(Open("ns/one", "'; DROP TABLE wanted_state; --")->Load()->wanted.revision, 3u);
}

TEST_F(StateDbTest, OneManagerAtATimeHasTheFolder) {
  auto first = Open();
  absl::Status second = StateDb::Open(folder_, {"ns/other", "", 0, 0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("(pid " + std::to_string(getpid()) + ")"));
  EXPECT_THAT(std::string(second.message()), HasSubstr(folder_.string()));
  ASSERT_TRUE(first->Save(Some(3)).ok());
  first.reset();
  EXPECT_EQ(Open()->Load()->wanted.revision, 3u);
}

TEST_F(StateDbTest, WhatOthersOwnOrCanWriteIsRefused) {
  auto refusal = [&] {
    absl::Status status = StateDb::Open(folder_, {}).status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  ASSERT_TRUE(Open()->Save(Some(7)).ok());
  for (const char* name : {"", "manager.db", "manager.lock"}) {
    const fs::path path = *name == '\0' ? folder_ : folder_ / name;
    const fs::perms before = fs::status(path).permissions();
    fs::permissions(path, fs::perms::group_write | before);
    EXPECT_THAT(refusal(), HasSubstr(path.string()));
    fs::permissions(path, fs::perms::others_write | before);
    EXPECT_THAT(refusal(), HasSubstr("others can write"));
    fs::permissions(path, before);
    if (geteuid() == 0) {
      ASSERT_EQ(chown(path.c_str(), 2002, 2002), 0);
      EXPECT_THAT(refusal(), HasSubstr("belongs to user 2002"));
      ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
    }
  }
  EXPECT_EQ(Open()->Load()->wanted.revision, 7u) << "and nothing was changed";
}

TEST_F(StateDbTest, NoLinkIsFollowed) {
  ASSERT_TRUE(Open()->Save(Some(7)).ok());
  for (const char* name : {"manager.db", "manager.db-journal", "manager.lock"}) {
    const fs::path path = folder_ / name, target = parent_ / "target";
    fs::remove(path);
    fs::create_symlink(target, path);
    absl::Status status = StateDb::Open(folder_, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path.string() + " is not a plain file"));
    EXPECT_FALSE(fs::exists(target));
    fs::remove(path);
  }
  fs::create_symlink(folder_, parent_ / "link");
  EXPECT_TRUE(absl::IsInvalidArgument(StateDb::Open(parent_ / "link", {}).status()));
  // Above it there may be links: /tmp and /data often are.
  fs::create_symlink(folder_.parent_path(), parent_ / "above");
  EXPECT_TRUE(StateDb::Open(parent_ / "above" / "state", {}).ok());
}

TEST_F(StateDbTest, ACorruptFileIsMovedAside) {
  ASSERT_TRUE(Open()->Save(Some(7)).ok());
  {
    std::ofstream file(folder_ / "manager.db", std::ios::in | std::ios::out | std::ios::binary);
    file << "this is not a database";
  }
  EXPECT_EQ(Open()->Load().value(), KeptState{});
  int aside = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with("manager.db.corrupt-")) ++aside;
  }
  EXPECT_EQ(aside, 1);
}

TEST_F(StateDbTest, DamageInsideTheFileIsFoundToo) {
  auto db = Open();
  ASSERT_TRUE(db->Save(Some(7)).ok());
  db.reset();
  {
    // The pages after the first, which holds the schema.
    std::fstream file(folder_ / "manager.db", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(8192, '\xa5');
  }
  EXPECT_EQ(Open()->Load().value(), KeptState{});
}

TEST_F(StateDbTest, AnEmptyFileIsAnEmptyState) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "manager.db").flush();
  EXPECT_EQ(Open()->Load().value(), KeptState{});
}

TEST_F(StateDbTest, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  fs::create_directories(parent_);
  std::ofstream(parent_ / "a").flush();
  absl::Status status = StateDb::Open(folder_, {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr((parent_ / "a").string() + "': Not a directory"));
  fs::remove(parent_ / "a");
  fs::create_directories(folder_ / "manager.db");  // a folder in the file's place
  status = StateDb::Open(folder_, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr((folder_ / "manager.db").string()));
}

TEST_F(StateDbTest, AFullDiskFailsTheSaveAndNothingElse) {
  auto db = Open();
  ASSERT_TRUE(db->Save(Some(7)).ok());
  // A file-size limit stands for the full disk: works for root too, and anywhere.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  absl::Status status = db->Save(Some(8));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(db->Load()->wanted.revision, 7u);
  EXPECT_TRUE(db->Save(Some(9)).ok());
  db.reset();
  EXPECT_EQ(Open()->Load()->wanted.revision, 9u);
}

// The file of release 0.1.0, byte for byte what its statements made.
TEST_F(StateDbTest, AFileOfTheFirstReleaseIsTakenOver) {
  fs::create_directories(folder_);
  sqlite3* old = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "manager.db").c_str(), &old), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(old,
                         "PRAGMA journal_mode = TRUNCATE; CREATE TABLE wanted_state (job TEXT NOT NULL, task_id TEXT "
                         "NOT NULL, revision INTEGER NOT NULL, requested INTEGER NOT NULL, effective INTEGER NOT NULL, "
                         "last_file TEXT, last_clusterd TEXT, PRIMARY KEY (job, task_id));"
                         "INSERT INTO wanted_state VALUES ('ns/job', 'task', 7, 3, 5, '10--1', NULL);"
                         "INSERT INTO wanted_state VALUES ('ns/other', 'task', 9, 1, 1, NULL, NULL);",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(old);
  auto db = Open();
  EXPECT_EQ(db->Load().value(), Some(7));
  EXPECT_TRUE(db->LoadVerdicts().value().empty());
  EXPECT_TRUE(db->LoadFaults().value().empty());
  ASSERT_TRUE(db->SaveVerdicts({"one"}).ok());
  db.reset();
  EXPECT_EQ(Open()->Load().value(), Some(7));
  EXPECT_EQ(Open("ns/other")->Load()->wanted.revision, 9u);
}

TEST_F(StateDbTest, VerdictsAreReplacedAsAWhole) {
  const std::string bytes("\0\xff'; --", 7);
  ASSERT_TRUE(Open()->SaveVerdicts({"second", bytes, ""}).ok());
  ASSERT_TRUE(Open("ns/other")->SaveVerdicts({"theirs"}).ok());
  EXPECT_THAT(Open()->LoadVerdicts().value(), ElementsAre("second", bytes, ""));
  auto db = Open();
  ASSERT_TRUE(db->SaveVerdicts({"third"}).ok());
  EXPECT_THAT(db->LoadVerdicts().value(), ElementsAre("third"));
  ASSERT_TRUE(db->SaveVerdicts({}).ok());
  db.reset();
  EXPECT_TRUE(Open()->LoadVerdicts().value().empty());
  EXPECT_THAT(Open("ns/other")->LoadVerdicts().value(), ElementsAre("theirs"));
}

TEST_F(StateDbTest, VerdictsThatFindNoRoomLeaveTheFormerOnes) {
  auto db = Open();
  ASSERT_TRUE(db->SaveVerdicts({"first"}).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  absl::Status status = db->SaveVerdicts({"second", std::string(100'000, 'x')});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(db->LoadVerdicts().value(), ElementsAre("first"));
  EXPECT_TRUE(db->SaveVerdicts({"third"}).ok());
  db.reset();
  EXPECT_THAT(Open()->LoadVerdicts().value(), ElementsAre("third"));
}

TEST_F(StateDbTest, FaultsAreKeptByVerdict) {
  KeptFault fault{3, KeptFault::State::kReported, std::string("\0request", 8)};
  ASSERT_TRUE(Open()->SaveFault(fault).ok());
  ASSERT_TRUE(Open()->SaveFault({2, KeptFault::State::kRefused, ""}).ok());
  ASSERT_TRUE(Open("ns/other")->SaveFault({9, KeptFault::State::kReported, ""}).ok());
  EXPECT_THAT(Open()->LoadFaults().value(), ElementsAre(KeptFault{2, KeptFault::State::kRefused, ""}, fault));
  fault.state = KeptFault::State::kRecovered;
  ASSERT_TRUE(Open()->SaveFault(fault).ok());
  EXPECT_EQ(Open()->LoadFaults()->back(), fault);
}

TEST_F(StateDbTest, OnlyTheNewestFaultsStay) {
  auto db = Open();
  for (uint64_t verdict = 1; verdict <= StateDb::kMaxKeptFaults + 5; ++verdict) {
    ASSERT_TRUE(db->SaveFault({verdict, KeptFault::State::kRecovered, "r"}).ok());
  }
  std::vector<KeptFault> faults = db->LoadFaults().value();
  EXPECT_EQ(faults.size(), size_t{StateDb::kMaxKeptFaults});
  EXPECT_EQ(faults.front().verdict, 6u);
}

}  // namespace
}  // namespace taskd::manager
