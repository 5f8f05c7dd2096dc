// Which of the names that nodes give themselves may leave the job. An order with a wrong name hits a healthy node, so in
// doubt there is no name. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/node_identity.h"

namespace taskd::manager {

// Why each node's name may not be used, in the order of `nodes`; "": it may. Refused are:
// 1. no name;
// 2. a text that is no name (IsNodeName);
// 3. a name that is not in `listed`, where the scheduler has a list of the job's nodes;
// 4. one name of two hosts: both lose it. Two pods of one machine share its name, others with one name have to agree in
//    host and machine;
// 5. two names of one host: both lose theirs.
//
// So a node that gives another node's name away takes it from both, as long as both are known here.
std::vector<std::string> RefuseNodeNames(const std::vector<const NodeIdentity*>& nodes,
                                         const std::optional<std::set<std::string>>& listed);

}  // namespace taskd::manager
