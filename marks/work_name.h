// Recognises mark names that report an amount of work: `{"work": N}`.
#pragma once

#include <optional>
#include <string_view>

namespace taskd {

// The work of a step that a mark reports, for example tokens or elements. Any unit will do if all ranks use the same
// one.
struct SaidWork {
  bool usable = false;  // a finite number >= 0; false: the value is something else
  double amount = 0;
};

// Parses `{"work": N}`, the name of an instant in the default domain. Returns nullopt if the name reports no work.
// Further members after the number are ignored.
std::optional<SaidWork> WorkOfName(std::string_view name);

// Parses `step 7 {"work": N}` and `forward {"work": N}` and cuts the report off the name. The recorder makes two marks
// of such a range (worker_sdk/src/work_suffix.h); this function is for files of other writers.
std::optional<SaidWork> CutWork(std::string_view& name);

}  // namespace taskd
