#include "diagnosis/rank_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/printable.h"
#include "diagnosis/render.h"
#include "nlohmann/json.hpp"

namespace taskd::diagnosis {
namespace {

using Json = nlohmann::ordered_json;

const char* TitleOf(const std::string& feature) {
  if (feature == "own_time") return "self time";
  if (feature == "own_past") return "self time";
  if (feature == "forward") return "forward";
  if (feature == "dataloader") return "data loading";
  if (feature == "save_checkpoint") return "checkpoint saves";
  return "transfers";
}

std::string FormatSeconds(double ns) {
  const double seconds = ns / 1e9;
  return absl::StrFormat("%.*f s", seconds < 10 ? 1 : 0, seconds);
}

std::string FormatCost(double ns) { return absl::StrFormat("%.3g ms", ns / 1e6); }

double FourDigits(double value) {
  return std::isfinite(value) ? std::strtod(absl::StrFormat("%.4g", value).c_str(), nullptr) : 0;
}

// Why there is no verdict of what chance does not explain.
std::string ReasonOf(const Held& held) {
  const bool is_known = held.needs > 0;
  switch (held.veto) {
    case Veto::kNone:
      break;
    case Veto::kWarmUp:
      return absl::StrCat("the rise has lasted ", FormatSeconds(held.has), " of the ", FormatSeconds(held.needs),
                          " that it has to last until the job has shown its noise bursts");
    case Veto::kNoiseBurst:
      return is_known ? absl::StrCat("the rise has lasted ", FormatSeconds(held.has), " of the ",
                                     FormatSeconds(held.needs), " that noise bursts last in this job")
                      : "it is slow in noise bursts that hit all ranks by turns";
    case Veto::kPlannedChange:
      return "all ranks have changed at the same time";
    case Veto::kLoad:
      return "its work explains it";
    case Veto::kCost:
      return absl::StrCat("it costs ", FormatCost(held.has), " of each step, a verdict needs ", FormatCost(held.needs));
    case Veto::kDuration:
      return absl::StrCat("the rise has lasted ", FormatSeconds(held.has), " of the ", FormatSeconds(held.needs),
                          " that a small peer group needs");
    case Veto::kSignificance:
      return "means of as many steps vary by as much in this job";
    case Veto::kFading:
      return "it is about to end, or has ended";
    case Veto::kSecondFault:
      return "it follows from another fault of the same ranks";
    case Veto::kAttribution:
      return "the evidence may still point to other ranks";
  }
  return "";
}

std::string DescribeMeasured(const DetectorTrace& trace) {
  const std::string reference = trace.peers > 1    ? absl::StrCat("its ", trace.peers, " peers")
                                : trace.peers == 1 ? "its peer"
                                                   : "its own past";
  const char* of = trace.feature == "dataloader" ? " of the step" : "";
  const std::string since = trace.since_step >= 0 ? absl::StrCat(" since step ", trace.since_step) : "";
  if (trace.excess > 1 && *of == '\0') {
    return absl::StrFormat("%s %.1f times %s%s", TitleOf(trace.feature), 1 + trace.excess, reference, since);
  }
  return absl::StrFormat("%s %.2g %%%s %s %s%s", TitleOf(trace.feature), 100 * std::abs(trace.excess), of,
                         trace.excess < 0 ? "below" : "above", reference, since);
}

}  // namespace

const char* Name(Veto veto) {
  switch (veto) {
    case Veto::kNone:
      return "";
    case Veto::kWarmUp:
      return "warm_up";
    case Veto::kNoiseBurst:
      return "noise_burst";
    case Veto::kPlannedChange:
      return "planned_change";
    case Veto::kLoad:
      return "load";
    case Veto::kCost:
      return "cost";
    case Veto::kDuration:
      return "duration";
    case Veto::kSignificance:
      return "significance";
    case Veto::kFading:
      return "fading";
    case Veto::kSecondFault:
      return "second_fault";
    case Veto::kAttribution:
      return "attribution";
  }
  return "";
}

const char* Name(TraceState state) {
  switch (state) {
    case TraceState::kNoData:
      return "no_data";
    case TraceState::kBelowThreshold:
      return "below_threshold";
    case TraceState::kVetoed:
      return "vetoed";
    case TraceState::kVerdict:
      return "verdict";
  }
  return "no_data";
}

const DetectorTrace* RankTrace::nearest() const {
  const auto ratio = [](const DetectorTrace& trace) {
    return trace.threshold > 0 ? trace.statistic / trace.threshold : 0;
  };
  // The first of equals: self time.
  const auto found = std::max_element(detectors.begin(), detectors.end(), [&](const auto& a, const auto& b) {
    return a.state != b.state ? a.state < b.state : ratio(a) < ratio(b);
  });
  return found == detectors.end() ? nullptr : &*found;
}

std::string WriteNeeds(const Held& held) {
  const double lacks = held.needs - held.has;
  switch (held.veto) {
    case Veto::kWarmUp:
    case Veto::kNoiseBurst:
    case Veto::kDuration:
      return lacks > 0 ? absl::StrCat(FormatSeconds(lacks), " more") : "";
    case Veto::kCost:
      return absl::StrCat(FormatCost(lacks), " more of each step");
    case Veto::kSignificance:
      return "more steps";
    default:
      return "";
  }
}

std::string WriteTraceText(const RankTrace& trace, const std::string& missing, const std::string& verdict) {
  const std::string rank = absl::StrCat("rank ", trace.rank, ": ");
  const DetectorTrace* nearest = trace.nearest();
  if (!missing.empty()) {
    return absl::StrCat(rank, missing, "; ", verdict.empty() ? "no verdict" : absl::StrCat("verdict: ", verdict));
  }
  if (nearest == nullptr || nearest->state == TraceState::kNoData) {
    return absl::StrCat(rank, "nothing could be compared; no verdict: needs ",
                        nearest == nullptr ? "marks" : trace.detectors.front().needs);
  }
  const std::string measured = absl::StrCat(rank, DescribeMeasured(*nearest));
  if (nearest->state == TraceState::kVerdict || !verdict.empty()) {
    return absl::StrCat(measured, "; verdict", verdict.empty() ? "" : ": ", verdict);
  }
  if (nearest->state == TraceState::kVetoed) return absl::StrCat(measured, "; no verdict: ", ReasonOf(nearest->held));
  if (nearest->statistic <= 0) return absl::StrCat(measured, "; no verdict: nothing rises");
  return absl::StrFormat("%s; no verdict: the sum of deviations is %.3g of the %.3g that chance does not explain",
                         measured, nearest->statistic, nearest->threshold);
}

std::string RenderTraceJson(const RankTrace& trace) {
  Json json;
  json["rank"] = trace.rank;
  json["text"] = trace.text;
  json["detectors"] = Json::array();
  for (const DetectorTrace& detector : trace.detectors) {
    const bool has_data = detector.state != TraceState::kNoData;
    const auto number = [has_data](double value) { return has_data ? Json(FourDigits(value)) : Json(); };
    Json row;
    row["feature"] = detector.feature;
    row["value"] = number(detector.value_ms);
    row["reference"] = number(detector.reference_ms);
    row["excess"] = number(detector.excess);
    row["statistic"] = number(detector.statistic);
    row["threshold"] = number(detector.threshold);
    row["since_step"] = detector.since_step < 0 ? Json() : Json(detector.since_step);
    row["decision"] = Name(detector.state);
    row["veto"] = detector.held.holds() ? Json(Name(detector.held.veto)) : Json();
    row["needs"] = detector.needs.empty() ? Json() : Json(detector.needs);
    json["detectors"].push_back(std::move(row));
  }
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string RenderTraceText(const RankTrace& trace) {
  std::string out;
  AppendWrapped(trace.text, 2, out);
  absl::StrAppendFormat(&out, "\n%-16s %10s %10s %8s %9s %9s  %-15s %s\n", "detector", "ms", "expected", "excess",
                        "statistic", "threshold", "decision", "needs");
  for (const DetectorTrace& detector : trace.detectors) {
    std::string decision = detector.held.holds() ? Name(detector.held.veto) : Name(detector.state);
    std::string line;
    if (detector.state == TraceState::kNoData) {
      line = absl::StrFormat("%-16s %10s %10s %8s %9s %9s  ", detector.feature, "-", "-", "-", "-", "-");
    } else {
      line = absl::StrFormat("%-16s %10.4g %10.4g %6.2g %% %9.3g %9.3g  ", detector.feature, detector.value_ms,
                             detector.reference_ms, 100 * detector.excess, detector.statistic, detector.threshold);
    }
    absl::StrAppendFormat(&line, "%-15s %s", decision, detector.needs);
    AppendWrapped(std::string(absl::StripTrailingAsciiWhitespace(line)), 85, out);
  }
  return out;
}

}  // namespace taskd::diagnosis
