// Which mark names say how much work there is: `{"work": N}`.
#pragma once

#include <optional>
#include <string_view>

namespace taskd {

// What a mark says of the work of its step: tokens, elements; what it counts does not matter as long as all ranks count
// the same.
struct SaidWork {
  bool usable = false;  // a finite number >= 0; false: something else stands there
  double amount = 0;
};

// Of `{"work": N}`, the name of an instant in the default domain. Nothing: the name says no work. Further members behind
// the number are skipped.
std::optional<SaidWork> WorkOfName(std::string_view name);

// Of `step 7 {"work": N}` and `forward {"work": N}`: cuts what says the work off the name. The recorder makes two marks
// of such a range (worker_sdk/src/work_suffix.h); this is for files that others wrote.
std::optional<SaidWork> CutWork(std::string_view& name);

}  // namespace taskd
