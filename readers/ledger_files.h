// The ledgers that managers keep: in a folder that attempts share (--ledger), or in a manager's state (--state-dir).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ledger/kept.h"

namespace taskd::readers {

// A ledger that was found.
struct LedgerFile {
  std::string path;
  absl::StatusOr<ledger::KeptLedger> ledger;  // or why it cannot be read
};

// By path. INVALID_ARGUMENT: the folder cannot be read, or no ledger is in it.
absl::StatusOr<std::vector<LedgerFile>> ListLedgers(const std::string& folder);
// Those of a manager's state, which may be at work: likewise, or where there is none of its <folder>/manager.db. *note: what
// may be wrong with them, for people; else it is left alone.
absl::StatusOr<std::vector<LedgerFile>> ListStateLedgers(const std::string& folder, std::string* note);

// The ledger of the job; the only one where `job` is empty. INVALID_ARGUMENT: there is none, or there are several (their
// names); as ReadKept: that one cannot be read.
absl::StatusOr<ledger::KeptLedger> ChooseLedger(const std::vector<LedgerFile>& ledgers, const std::string& job);

}  // namespace taskd::readers
