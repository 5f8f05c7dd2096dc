// Finds the rank of each profile and each flight recorder dump that does not state it.
#pragma once

#include <string>
#include <vector>

#include "readers/read_source.h"

namespace taskd::readers {

// Takes the ranks of such files from their names, those of one format together (readers/named_ranks.h). If two files
// would then be of one rank at one time, the names are misunderstood: all files that were named this way stay without a
// rank, with a note. A profile or dump that is the only one of its kind and names no rank is of rank 0. Returns a note
// that says so; empty otherwise.
std::string NameRanks(std::vector<SourceContent>& read);

}  // namespace taskd::readers
