// Finds the ledgers that managers keep, in a folder that attempts share (--ledger) or in a manager's state
// (--state-dir).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ledger/kept.h"

namespace taskd::readers {

// A ledger file and its content.
struct LedgerFile {
  std::string path;
  absl::StatusOr<ledger::KeptLedger> ledger;  // or the reason why it cannot be read
};

// Ordered by path. INVALID_ARGUMENT: the folder cannot be read, or it contains no ledger.
absl::StatusOr<std::vector<LedgerFile>> ListLedgers(const std::string& folder);
// The ledgers in a manager's state; the manager may be running. Reads <folder>/manager.db if the folder has no ledger
// file; the errors are the same. If the ledgers may be wrong, *note is set to a sentence for people.
absl::StatusOr<std::vector<LedgerFile>> ListStateLedgers(const std::string& folder, std::string* note);

// The ledger of the job, or the only one if `job` is empty. INVALID_ARGUMENT: there is none, or there are several (with
// their names). The errors of ReadKept: the chosen ledger cannot be read.
absl::StatusOr<ledger::KeptLedger> ChooseLedger(const std::vector<LedgerFile>& ledgers, const std::string& job);

}  // namespace taskd::readers
