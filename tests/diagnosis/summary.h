// The tables of an evaluation, as Markdown.
#pragma once

#include <string>
#include <vector>

#include "tests/diagnosis/replay.h"

namespace taskd::evaluation {

// All tables. `results` without errors.
std::string Tables(const std::vector<CaseResult>& results);

// What went wrong in a case, one line each: missed visible faults, wrong or imprecise names, wrong causes, verdicts
// that were not cleared. Empty: nothing.
std::vector<std::string> Failures(const CaseResult& result);

}  // namespace taskd::evaluation
