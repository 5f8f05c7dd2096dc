// The folder of a node's mark files, as its proxy reports it (taskd.v1.MarkFiles), and its description for users.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace taskd {

struct MarkFiles {
  std::string dir;    // empty: nowhere
  std::string error;  // without a dir: the reason, "/x/y: Permission denied"; with one: why marks wait in memory now
  std::string task = {};  // the task's folder in `dir`; empty: `dir` is the job's own

  friend bool operator==(const MarkFiles&, const MarkFiles&) = default;
};

// Describes the folders of all nodes:
//   "/data/marks"
//   "/data/marks (marks wait in memory: …/0/1745567190: No space left on device)"
//   "none (/x/y: Permission denied)"
//   "/data/marks on 3 nodes, none (/x/y: Permission denied) on node 7"
// At most 4 different folders are listed, in the order of `nodes`. The text is empty if there are no nodes.
std::string MarkFilesText(const std::vector<std::pair<int, MarkFiles>>& nodes);

}  // namespace taskd
