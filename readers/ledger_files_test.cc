#include "readers/ledger_files.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
  EXPECT_THAT(Choose("").status().message(), HasSubstr("a.ledger.json: is not a regular file"));
}

TEST_F(LedgerFilesTest, OfAManagersState) {
  std::string note;
  EXPECT_THAT(ListStateLedgers(folder_, &note).status().message(), HasSubstr("no ledger is in it"));
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/manager.db").c_str(), &db), SQLITE_OK);
  EXPECT_THAT(ListStateLedgers(folder_, &note).status().message(), HasSubstr("no ledger is in it"));
  const std::string sql =
      "CREATE TABLE ledger (job TEXT, task_id TEXT, state TEXT); INSERT INTO ledger VALUES ('ns/a', '1', '" +
      Kept("ns/a", "1") + "'), ('ns/b', '', 'x')";
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  absl::StatusOr<std::vector<LedgerFile>> ledgers = ListStateLedgers(folder_, &note);
  ASSERT_TRUE(ledgers.ok()) << ledgers.status();
  ASSERT_EQ(ledgers->size(), 2u);
  EXPECT_EQ((*ledgers)[0].ledger->job, "ns/a");
  EXPECT_FALSE((*ledgers)[1].ledger.ok());
  Put("c.ledger.json", Kept("ns/c", "1"));  // a later release writes such files
  ledgers = ListStateLedgers(folder_, &note);
  ASSERT_TRUE(ledgers.ok()) << ledgers.status();
  ASSERT_EQ(ledgers->size(), 1u);
  EXPECT_EQ((*ledgers)[0].ledger->job, "ns/c");
  EXPECT_EQ(note, "");
}

// The folder may be another user's. A pipe would block the command, and a view may never end.
TEST_F(LedgerFilesTest, ADatabaseThatIsATrap) {
  const std::string path = folder_ + "/manager.db";
  std::string note;
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(ListStateLedgers(folder_, &note).status().message(), HasSubstr("is not a regular file"));
  std::filesystem::remove(path);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db,
                         "CREATE VIEW ledger AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                         "SELECT i AS job, i AS task_id, i AS state FROM n WHERE i < 0",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(ListStateLedgers(folder_, &note).status().message(), HasSubstr("interrupted"));
  ASSERT_EQ(mkfifo((path + "-journal").c_str(), 0600), 0);
  EXPECT_THAT(ListStateLedgers(folder_, &note).status().message(), HasSubstr("-journal: is not a regular file"));
}

// A manager that was killed during a change leaves a journal that has to be rolled back.
TEST_F(LedgerFilesTest, AManagerThatWasKilledWithinAChange) {
  const std::string path = folder_ + "/manager.db";
  const pid_t child = fork();
  if (child == 0) {
    sqlite3* db = nullptr;
    const auto run = [&](const std::string& sql) {
      if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) _exit(1);
    };
    if (sqlite3_open(path.c_str(), &db) != SQLITE_OK) _exit(1);
    run("PRAGMA journal_mode = TRUNCATE; PRAGMA cache_size = 1; CREATE TABLE ledger (job TEXT, task_id TEXT, state "
        "TEXT)");
    run("INSERT INTO ledger VALUES ('ns/a', '1', '" + Kept("ns/a", "1") + "')");
    // Data that does not fit into the cache is written to the file before the commit.
    run("BEGIN; DELETE FROM ledger; CREATE TABLE big (text TEXT)");
    for (int i = 0; i < 100; ++i) run("INSERT INTO big VALUES ('" + std::string(3000, 'x') + "')");
    kill(getpid(), SIGKILL);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  ASSERT_TRUE(WIFSIGNALED(ended));
  ASSERT_GT(std::filesystem::file_size(path + "-journal"), 0u);
  std::string note;
  if (geteuid() != 0) {  // root may write everywhere
    ASSERT_EQ(chmod(path.c_str(), 0400), 0);
    ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
    const absl::StatusOr<std::vector<LedgerFile>> as_it_is = ListStateLedgers(folder_, &note);
    EXPECT_TRUE(!note.empty() || !as_it_is.ok());
    ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
    note.clear();
  }
  const absl::StatusOr<std::vector<LedgerFile>> ledgers = ListStateLedgers(folder_, &note);
  ASSERT_TRUE(ledgers.ok()) << ledgers.status();
  ASSERT_EQ(ledgers->size(), 1u);
  EXPECT_EQ((*ledgers)[0].ledger->job, "ns/a");
  EXPECT_EQ(note, "");
}

}  // namespace
}  // namespace taskd::readers
