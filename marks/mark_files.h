// Where the mark files of a node go, as its proxy says it (taskd.v1.MarkFiles), and how people are told of all nodes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace taskd {

struct MarkFiles {
  std::string dir;        // empty: nowhere
  std::string error;      // then why: "/x/y: Permission denied"; else why marks wait in memory now
  std::string task = {};  // the task's folder in `dir`; empty: `dir` is the job's own

  friend bool operator==(const MarkFiles&, const MarkFiles&) = default;
};

// "/data/marks", "/data/marks (marks wait in memory: …/0/1745567190: No space left on device)",
// "none (/x/y: Permission denied)"; where nodes differ "/data/marks on 3 nodes, none (/x/y: Permission
// denied) on node 7", at most 4 of them. By node rank; empty for no nodes.
std::string MarkFilesText(const std::vector<std::pair<int, MarkFiles>>& nodes);

}  // namespace taskd
