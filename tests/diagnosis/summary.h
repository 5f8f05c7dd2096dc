// The tables of an evaluation, as Markdown.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/diagnosis/replay.h"

namespace taskd::evaluation {

// Of some that could be.
struct Rate {
  int64_t hits = 0, trials = 0;
  void Add(bool hit) {
    hits += hit;
    ++trials;
  }
  double value() const { return trials > 0 ? static_cast<double>(hits) / static_cast<double>(trials) : std::nan(""); }
};
// "98.2 % (112/114; 94.0–99.9)": with its exact interval of 95 %.
std::string Show(const Rate& rate);

// What the first detector of each case made of it, in numbers.
struct Figures {
  Rate precision;              // of the entities that were named
  Rate recall, small;          // of the faults that are felt, and of those below 10 %
  Rate named;                  // jobs where nobody is slow, in which somebody was named
  std::vector<double> delays;  // steps until steady faults are named
};
Figures FiguresOf(const std::vector<CaseResult>& results);

// All tables. `results` without errors.
std::string Tables(const std::vector<CaseResult>& results);

// What went wrong in a case, one line each: missed visible faults, wrong or imprecise names, wrong causes, verdicts
// that were not cleared. Empty: nothing.
std::vector<std::string> Failures(const CaseResult& result);

}  // namespace taskd::evaluation
