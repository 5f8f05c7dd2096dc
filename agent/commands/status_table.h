// What `taskd status` prints for people.
#pragma once

#include <string>

#include "taskd/v1/control.pb.h"

namespace taskd::commands {

// A line for each rank, below its node's. Safe to print.
std::string ListRanks(const v1::JobStatus& status);

// A line for all ranks that are in one state, with the list of them, whatever their number: first those that are as
// wanted, then the others. At most 24 lines of states; of the rest only how many there are. Safe to print.
std::string SumUpRanks(const v1::JobStatus& status);

// The job, its newest five events, the diagnosis in one sentence, and the ranks: listed, or of more than `most_listed`
// summed up. Safe to print.
std::string RenderStatus(const v1::JobStatus& status, int most_listed, bool is_kept = false);

}  // namespace taskd::commands
