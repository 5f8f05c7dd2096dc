// The names of communication marks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "marks/step_fold.h"

namespace taskd {

// A communication mark's name (TaskD contract §4.4), read. Tolerates escaped quotes and any order of keys.
struct CommName {
  std::string_view group;  // points into the name or into `storage`
  CommOp op = CommOp::kOther;
  int32_t peer = -1;   // destRank of a send, srcRank of a receive; of a batch whichever is there
  uint64_t bytes = 0;  // count x size of dataType; 0 if either is unknown
};
// False: not a communication name.
bool ParseCommName(std::string_view name, std::string& storage, CommName& out);

}  // namespace taskd
