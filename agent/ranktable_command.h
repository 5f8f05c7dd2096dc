// `taskd ranktable check`: whether a rank table keeps the rules that HCCL and the launch modes rely on.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace taskd {

struct RankTableCommandOptions {
  std::string file;
  std::string chip = "any";  // any, 910, 950
  bool json = false;
};

// Prints the result on stdout; true: the table is valid. INVALID_ARGUMENT: wrong usage, the file cannot be read or is
// no JSON; then nothing was printed.
absl::StatusOr<bool> RunRankTableCheck(const RankTableCommandOptions& options);

}  // namespace taskd
