// What files of several formats prove of one job, as one report that says which of them proved what.
#pragma once

#include <vector>

#include "diagnosis/verdict.h"
#include "readers/source_files.h"
#include "readers/source_marks.h"

namespace taskd::readers {

// Steps that were judged beside each other.
struct Judged {
  std::vector<SourceFormat> formats;  // of their files
  diagnosis::Report report;
  std::vector<SourceRank> ranks;
};

// `parts`: at least one, those first that tell most. What two of them say of the same ranks is one verdict, with the cost
// that the first one gives. `proved_by`: of each verdict of the result.
diagnosis::Report JoinReports(const std::vector<Judged>& parts, std::vector<std::vector<SourceFormat>>& proved_by);

}  // namespace taskd::readers
