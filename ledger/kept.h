// The saved form of a ledger: the text from which a later manager continues, and its file name.
//
// Pure. The text is one JSON object; `report` in it is what `taskd goodput --json` prints (ledger/render.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ledger/ledger.h"

namespace taskd::ledger {

// The process that wrote a ledger, and the end of its report on that process's clocks.
struct Writer {
  std::string boot_id;    // steady_ns is comparable only within one boot
  int64_t steady_ns = 0;  // the steady clock
  int64_t unix_ns = 0;
  int parent = 0;  // process id of its launcher

  friend bool operator==(const Writer&, const Writer&) = default;
};

struct KeptLedger {
  std::string job, task;  // names of the job and the task
  Writer writer;
  Ledger::Kept kept;  // ReadKept() leaves dead_ns 0: it depends on the reader's clock
};

// Reports are bounded, so the text of a ledger is always smaller than this.
inline constexpr size_t kMaxKeptBytes = size_t{8} << 20;

std::string RenderKept(const KeptLedger& ledger);
// FAILED_PRECONDITION: a later release wrote the text. INVALID_ARGUMENT: the text is not a kept ledger.
absl::StatusOr<KeptLedger> ReadKept(std::string_view text);

// The file's name without kKeptSuffix: the readable characters of job and task, and a number that distinguishes names
// whose readable characters are equal. At most 200 bytes of [A-Za-z0-9._-]; it does not begin with a dot.
std::string KeptName(const std::string& job, const std::string& task);
inline constexpr char kKeptSuffix[] = ".ledger.json";

}  // namespace taskd::ledger
