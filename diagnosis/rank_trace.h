// Why a rank has a verdict or none: what each detector measured of it, and what was decided of that. `taskd diagnose --why`
// prints it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/veto.h"

namespace taskd::diagnosis {

enum class TraceState : uint8_t { kNoData, kBelowThreshold, kVetoed, kVerdict };

const char* Name(TraceState state);  // "below_threshold"

struct DetectorTrace {
  std::string feature;  // "own_time", "own_past", "forward", "dataloader", "save_checkpoint", "transfer"
  TraceState state = TraceState::kNoData;
  // Of all but kNoData: means over the steps since `since_step`, else over the last ones.
  double value_ms = 0, reference_ms = 0;
  // By how much the value is above the reference: as a share of that, of loading as a share of the step.
  double excess = 0;
  double statistic = 0, threshold = 0;  // as Stream::Trace
  int64_t since_step = -1;              // -1: nothing rises
  int peers = 0;                        // 0: its own past is the reference
  Held held = {};                       // of kVetoed
  std::string needs = "";               // "6 s more": what is missing for a verdict; empty: nothing
};

struct RankTrace {
  int rank = 0;
  std::string text;  // one sentence
  std::vector<DetectorTrace> detectors;

  // What comes nearest to a verdict.
  const DetectorTrace* nearest() const;
};

// What is missing until the rule does not hold any more: "6 s more"; empty: that cannot be said.
std::string WriteNeeds(const Held& held);

// The sentence of it. `missing`: why nothing is known of the rank; empty: something is. `verdict`: the sentence of the open
// verdict that accuses it; empty: there is none.
std::string WriteTraceText(const RankTrace& trace, const std::string& missing, const std::string& verdict);

// One object without a line feed, and lines for people of at most 120 columns.
std::string RenderTraceJson(const RankTrace& trace);
std::string RenderTraceText(const RankTrace& trace);

}  // namespace taskd::diagnosis
