// The cases of uneven work: sequences of different lengths, ranks that always get more than their peers, and both with
// faults; with the work known and without.
#pragma once

#include "tests/diagnosis/suites.h"

namespace taskd::evaluation {

struct Ragged {
  bool lengths = false;  // drawn per rank and step, 10 to 40 %
  bool loads = false;    // a rank, or each of some, gets 1.2 to 2 times what its peers get
  bool faults = false;   // in two of three cases, of 1.1 to 1.5
  bool known = true;     // the marks say the work
};

void MakeRagged(const Ragged& what, int index, Case& made);

}  // namespace taskd::evaluation
