// A ledger as it is kept: as text that a later manager goes on from, and under which name.
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

// Who wrote it, and when its report ends by which clock.
struct Writer {
  std::string boot_id;    // of one boot all processes have one steady clock
  int64_t steady_ns = 0;  // of that clock
  int64_t unix_ns = 0;
  int parent = 0;  // its launcher's process id

  friend bool operator==(const Writer&, const Writer&) = default;
};

struct KeptLedger {
  std::string job, task;  // that it is of
  Writer writer;
  Ledger::Kept kept;  // dead_ns is nobody's yet: 0
};

// More than the text of a ledger ever has: reports are bounded.
inline constexpr size_t kMaxKeptBytes = size_t{8} << 20;

std::string RenderKept(const KeptLedger& ledger);
// FAILED_PRECONDITION: of a later release. INVALID_ARGUMENT: it is no kept ledger.
absl::StatusOr<KeptLedger> ReadKept(std::string_view text);

// The file's name without what follows the dot: job and task as far as they can be read in it, and a number that tells
// apart what cannot. At most 200 bytes, of [A-Za-z0-9._-], no dot in front.
std::string KeptName(const std::string& job, const std::string& task);
inline constexpr char kKeptSuffix[] = ".ledger.json";

}  // namespace taskd::ledger
