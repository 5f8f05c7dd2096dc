// Joins what files of several formats prove about one job to one report, and records which of them proved each verdict.
#pragma once

#include <vector>

#include "diagnosis/verdict.h"
#include "readers/source_files.h"
#include "readers/source_marks.h"

namespace taskd::readers {

// A set of steps that was judged together.
struct Judged {
  std::vector<SourceFormat> formats;  // formats of the files
  diagnosis::Report report;
  std::vector<SourceRank> ranks;
};

// `parts`: at least one, the most detailed first. Equal findings of two parts about the same ranks become one verdict
// with the first part's cost. `proved_by`: the formats behind each verdict of the result.
diagnosis::Report JoinReports(const std::vector<Judged>& parts, std::vector<std::vector<SourceFormat>>& proved_by);

}  // namespace taskd::readers
