// The cases of the evaluation: the fault matrix, the hard suites H1, H2, ... and those of uneven work, W1 to W3, each a Job
// made from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/simulate/job.h"

namespace taskd::evaluation {

struct Case {
  std::string suite;  // "matrix", "H1", "H5b", "healthy", ...
  simulate::Job job;
  bool honesty = false;  // nobody must be named (notes and verdicts of scope job are fine)
};

// The names of all suites but those that are for whoever asks for them.
std::vector<std::string> SuiteNames();
// "scale": 2,048 to 16,384 ranks; "quiet": healthy jobs of days; "W2u" and "W3u": uneven work that marks do not tell.
std::vector<std::string> SuitesByNameOnly();
// Case `index` of a suite: the same for the same seed. Layouts, severities and shapes go round with the index, details
// are drawn from the seed. An unknown suite gives a healthy job of the defaults.
Case MakeCase(const std::string& suite, uint64_t seed, int index);

}  // namespace taskd::evaluation
