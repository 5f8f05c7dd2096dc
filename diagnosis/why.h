// What each detector has decided of a rank. It reads the decisions that the engine has made for its last step, and decides
// nothing itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnosis/judge.h"
#include "diagnosis/rank_trace.h"

namespace taskd::diagnosis {

// All detectors of the rank, without text; steps are places (lives.h). `is_open`: whether a verdict with this key is open.
// `least_rise`: the smallest lasting one of its self time that would have been named by now, a share; 0: not known.
std::vector<DetectorTrace> TraceDetectors(const JudgeInput& input, const std::vector<Decision>& decisions,
                                          const std::function<bool(const std::string& key)>& is_open, double least_rise,
                                          int rank);

}  // namespace taskd::diagnosis
