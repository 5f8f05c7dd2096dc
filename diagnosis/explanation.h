// Who explains that transfers are slow: of the links, groups, network cards and nodes that there are, and the fabric
// between them, the one whose lines are slower while nobody else's are. Lines in, explanations out.
#pragma once

#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// All communication of one process group (a, b: -1), or between one pair of ranks, whatever the operations.
struct Line {
  int group = -1;
  int a = -1, b = -1;        // of a pair, a < b
  std::vector<int> members;  // ranks
  bool inter_node = false;   // it leaves a node
  bool blocking = false;     // computation waits for it
  double support = 0;        // log likelihood that it is slower against that it is not
  bool raised = false;       // beyond chance
};

struct Explanation {
  Scope scope = Scope::kGroup;
  std::vector<int> ids;
  std::vector<Link> links;
  std::vector<Alternative> alternatives;
  Cause cause = Cause::kNetwork;
  double confidence = 0;
  std::vector<int> lines;  // that it covers, slower or not: indexes
};

// Explanations until every raised line has one, the likeliest first. `changed`: lines are slower than they were before,
// not only slower than others; what never was faster is not held against the whole fabric.
std::vector<Explanation> ExplainSlowLines(const Layout& layout, const std::vector<Line>& lines, bool changed);

}  // namespace taskd::diagnosis
