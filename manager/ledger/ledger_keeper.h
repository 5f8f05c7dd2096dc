// Keeps the ledger where that may hang: all that touches the storage happens in a thread of its own, which writes the
// newest text only. Nobody waits for it, not even the end of the manager for longer than kEndPatience.
//
// Design:
// 1. The thread opens the store, again and again while that fails, and hands over what was kept before. Nothing is
//    written until somebody has taken that: what is written has it in it.
// 2. Trouble is one line, with the time from which on the ledger would have a hole, and another one when it is over.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd::manager {

// Used by one thread.
class LedgerStore {
 public:
  virtual ~LedgerStore() = default;
  // What was kept, empty: nothing; from now on it is this one's. FAILED_PRECONDITION: it will never be. Any other error:
  // not now.
  virtual absl::StatusOr<std::string> Open() = 0;
  // Survives the end of the process. ABORTED: it is not this one's any more. Any other error: not now.
  virtual absl::Status Save(const std::string& text) = 0;
};

// Thread-safe.
class LedgerKeeper {
 public:
  static constexpr std::chrono::milliseconds kEndPatience{1000};
  // A store that takes longer is worth a line.
  static constexpr std::chrono::milliseconds kHangs{2000};

  // `where`: what people call it.
  LedgerKeeper(std::unique_ptr<LedgerStore> store, std::string where,
               std::chrono::milliseconds retry = std::chrono::milliseconds(5000));
  // Lets it write what still waits.
  ~LedgerKeeper();
  LedgerKeeper(const LedgerKeeper&) = delete;
  LedgerKeeper& operator=(const LedgerKeeper&) = delete;

  // What was kept, if it is known within `patience`.
  std::optional<std::string> Await(std::chrono::milliseconds patience);
  // Otherwise: called in the thread once it is. Texts that were given before it returns are not written.
  void OnLate(std::function<void(const std::string& kept)> take);

  void Save(std::string text);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // the thread's too, which may stay behind
};

}  // namespace taskd::manager
