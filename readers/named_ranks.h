// The rank of each file of a job, where only the files' names tell. Names are read together: one name alone does not say
// which of its numbers is the rank.
#pragma once

#include <string>
#include <vector>

namespace taskd::readers {

// The rank that each of `paths` names, in the order of `paths`; -1: it cannot be told. A path's rank is, in this order:
// 1. the number behind the word "rank" or "r", in the file's name, else in the name of its folder. Numbers behind "tp_rank",
//    "dp_rank", "local_rank" and the like count places in a part of the job, and are not taken for it;
// 2. the only number of the file's name;
// 3. of files whose names are alike but for their numbers, the one number that differs in all of them; of several such
//    numbers the one that counts from 0 on. The same with the names of their folders.
// A number before a time (HOST_PID.TIME) is a process id unless these numbers count from 0 on.
std::vector<int> RanksOfPaths(const std::vector<std::string>& paths);

}  // namespace taskd::readers
