#include "readers/ledger_files.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::readers {
namespace {

using ::testing::HasSubstr;

std::string Kept(const std::string& job, const std::string& task) {
  ledger::KeptLedger kept;
  kept.job = job;
  kept.task = task;
  return ledger::RenderKept(kept);
}

class LedgerFilesTest : public ::testing::Test {
 protected:
  LedgerFilesTest() {
    char name[] = "/tmp/ledger_files_test.XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~LedgerFilesTest() override { std::filesystem::remove_all(folder_); }
  void Put(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }
  absl::StatusOr<ledger::KeptLedger> Choose(const std::string& job) const {
    absl::StatusOr<std::vector<LedgerFile>> ledgers = ListLedgers(folder_);
    if (!ledgers.ok()) return ledgers.status();
    return ChooseLedger(*ledgers, job);
  }
  std::string folder_;
};

TEST_F(LedgerFilesTest, TheOnlyOneNeedsNoName) {
  EXPECT_THAT(Choose("").status().message(), HasSubstr("no ledger is in it"));
  Put("a.ledger.json", Kept("ns/a", "1"));
  Put("a.lock", "x");
  EXPECT_EQ(Choose("")->job, "ns/a");
  EXPECT_THAT(Choose("ns/b").status().message(), HasSubstr("no ledger of job ns/b is there, but of ns/a (task 1)"));
  EXPECT_THAT(ListLedgers(folder_ + "/x").status().message(), HasSubstr("No such file"));
}

TEST_F(LedgerFilesTest, OfSeveralTheNamedOne) {
  Put("a.ledger.json", Kept("ns/a", "1"));
  Put("b.ledger.json", Kept("ns/b", ""));
  EXPECT_THAT(Choose("").status().message(),
              HasSubstr("2 ledgers are there, --job NAMESPACE/NAME chooses one: ns/a (task 1), ns/b"));
  EXPECT_EQ(Choose("ns/b")->job, "ns/b");
  Put("c.ledger.json", "x");
  EXPECT_EQ(Choose("ns/b")->job, "ns/b");
}

TEST_F(LedgerFilesTest, WhatCannotBeReadSaysWhy) {
  Put("a.ledger.json", R"({"schema":9})");
  EXPECT_TRUE(absl::IsFailedPrecondition(Choose("").status()));
  EXPECT_THAT(Choose("ns/a").status().message(), HasSubstr("a.ledger.json: it is of a later release (schema 9)"));
  std::filesystem::remove(folder_ + "/a.ledger.json");
  ASSERT_EQ(mkfifo((folder_ + "/a.ledger.json").c_str(), 0600), 0);
  EXPECT_THAT(Choose("").status().message(), HasSubstr("no plain file"));
}

TEST_F(LedgerFilesTest, OfAManagersState) {
  EXPECT_THAT(ListStateLedgers(folder_).status().message(), HasSubstr("manager.db: unable to open"));
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/manager.db").c_str(), &db), SQLITE_OK);
  EXPECT_THAT(ListStateLedgers(folder_).status().message(), HasSubstr("no such table"));
  const std::string sql =
      "CREATE TABLE ledger (job TEXT, task_id TEXT, state TEXT); INSERT INTO ledger VALUES ('ns/a', '1', '" +
      Kept("ns/a", "1") + "'), ('ns/b', '', 'x')";
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  absl::StatusOr<std::vector<LedgerFile>> ledgers = ListStateLedgers(folder_);
  ASSERT_TRUE(ledgers.ok()) << ledgers.status();
  ASSERT_EQ(ledgers->size(), 2u);
  EXPECT_EQ((*ledgers)[0].ledger->job, "ns/a");
  EXPECT_FALSE((*ledgers)[1].ledger.ok());
}

}  // namespace
}  // namespace taskd::readers
