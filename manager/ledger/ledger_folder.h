// The ledger of one job and task in a folder: in one that the attempts of the job share, on a file system of several
// machines, or in a manager's own state folder.
//
// Design:
// 1. A ledger is one file, replaced as a whole: a reader finds the old or the new one. It is bounded, as a report is.
// 2. One manager at a time has a shared one: <name>.lock names its process. The lock of a process that is known to be dead (same
//    boot, same process ids) is free; so is one whose owner has written nothing for kStaleS by the clock of the file
//    system, which is the same for all machines. Every write looks whether the lock is still there: who was taken for
//    dead and lives stops.
// 3. Of several that take the same lock over, one makes <name>.lock.<owner>.taken first; only that one may go on. One
//    that is kStaleS old was left by a manager that has ended in the middle of this.
// 4. Folder and files are this user's or root's, and nobody else may write there.
//
// One thread. May hang as long as the storage does.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "manager/ledger/ledger_keeper.h"

namespace taskd::manager {

class LedgerFolder final : public LedgerStore {
 public:
  static constexpr int64_t kStaleS = 30;  // six times what a manager writes at least

  enum class Guard : uint8_t {
    kLockFile,    // as above; what is kept is of this job and task alone
    kByTheCaller  // who has made sure that no other manager uses the folder
  };

  // Touches nothing. `job` and `task` name the file; `task` may be empty.
  LedgerFolder(std::string folder, std::string job, std::string task, Guard guard = Guard::kLockFile);
  // Lets the lock go.
  ~LedgerFolder() override;
  LedgerFolder(const LedgerFolder&) = delete;
  LedgerFolder& operator=(const LedgerFolder&) = delete;

  // Makes the folder where it is missing. UNAVAILABLE: another manager has the ledger (its host and process id), or the
  // system's message. FAILED_PRECONDITION: it is of a later release, or another job's.
  absl::StatusOr<std::string> Open() override;
  absl::Status Save(const std::string& text) override;

 private:
  absl::Status OpenFolder();
  absl::Status TakeLock();
  absl::Status TakeOver(const std::string& owner);
  // The id of the lock's owner; empty: nobody has it, or it cannot be read.
  absl::StatusOr<std::string> ReadLock(std::string* text) const;
  // Whether its owner is gone for good.
  bool IsDead(const std::string& lock_text) const;
  // Whether kStaleS have passed since any of these files was written, by the file system's clock.
  absl::StatusOr<bool> IsStale(std::initializer_list<std::string> names) const;
  absl::StatusOr<std::string> ReadWhole(const std::string& name) const;
  absl::Status Replace(const std::string& name, const std::string& text) const;
  absl::Status Error(const std::string& name) const;

  const std::string path_, job_, task_;
  const std::string ledger_name_, lock_name_;  // in the folder
  const std::string id_;                       // of this owner; of no other one
  const std::string lock_text_;
  const Guard guard_;
  UniqueFd folder_;
  bool owns_ = false;
};

}  // namespace taskd::manager
