// Why a deviation that chance does not explain is no verdict.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {

enum class Veto : uint8_t {
  kNone,
  kWarmUp,         // the job has not shown yet how long its noise bursts last
  kNoiseBurst,     // noise bursts of this job last as long
  kPlannedChange,  // all ranks have changed at the same time
  kLoad,           // the rank's work explains it
  kCost,           // it costs less than what is worth a verdict
  kDuration,       // it is too young: the peer group is small
  kSignificance,   // means of as many steps vary by as much in this job
  kFading,         // it is about to end, or has cost little lately
  kSecondFault,    // it follows from another fault of the same ranks
  kAttribution,    // the evidence may still point to others
};

// Always, but where tests/diagnosis/ablate.sh tries without it.
inline bool IsOn(Veto veto) { return (parameters.vetoes_off >> static_cast<int>(veto) & 1) == 0; }

// "noise_burst"; of kNone "".
const char* Name(Veto veto);

// A rule's decision. `has` and `needs`: of kWarmUp, kNoiseBurst and kDuration how long the deviation has lasted and has to
// last, ns; of kCost what it costs and has to cost in each step, ns; 0 where a number does not help.
struct Held {
  Veto veto = Veto::kNone;
  double has = 0, needs = 0;

  bool holds() const { return veto != Veto::kNone && IsOn(veto); }
};

// The first one that holds.
inline Held FirstOf(std::initializer_list<Held> rules) {
  for (const Held& rule : rules) {
    if (rule.holds()) return rule;
  }
  return {};
}

}  // namespace taskd::diagnosis
