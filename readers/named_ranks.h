// Finds the rank of each file of a job from the files' names. Names are read together, because one name alone does not
// show which of its numbers is the rank.
#pragma once

#include <string>
#include <vector>

namespace taskd::readers {

// Returns the rank that each of `paths` names, in the order of `paths`; -1: unknown. A path's rank is, in this order:
// 1. the number after the word "rank" or "r" in the file's name, else in the name of its folder. Numbers after
//    "tp_rank", "dp_rank", "local_rank" and the like count within a part of the job, and are ignored;
// 2. the only number in the file's name;
// 3. in files whose names differ only in their numbers, the one number that differs in all of them; if several do, the
//    one that counts from 0. The same for the names of their folders.
// A number before a time (HOST_PID.TIME) is a process id unless these numbers count from 0.
std::vector<int> RanksOfPaths(const std::vector<std::string>& paths);

}  // namespace taskd::readers
