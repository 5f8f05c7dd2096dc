// The one sentence of a verdict.
#pragma once

#include <string>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// `step_ms`: the job's present step. Uses all other fields of the verdict.
std::string WriteSentence(const Verdict& verdict, const Layout& layout, double step_ms);

// "7", "0-3, 7, 12-15": a list of ranks for people, at most `limit` parts.
std::string FormatRanks(const std::vector<int>& ranks, size_t limit = 6);

}  // namespace taskd::diagnosis
