// The names of communication marks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "marks/step_fold.h"

namespace taskd {

// The parsed name of a communication mark (TaskD contract §4.4). The parser accepts escaped quotes and keys in any
// order.
struct CommName {
  std::string_view group;  // points into the name or into `storage`
  CommOp op = CommOp::kOther;
  int32_t peer = -1;   // destRank of a send, srcRank of a receive; for a batch destRank, or else srcRank; -1: unknown
  uint64_t bytes = 0;  // count x size of dataType; 0 if either is unknown
};
// Returns false if groupName or opName is missing.
bool ParseCommName(std::string_view name, std::string& storage, CommName& out);

}  // namespace taskd
