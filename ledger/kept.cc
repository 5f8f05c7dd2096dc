#include "ledger/kept.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/json_limits.h"
#include "ledger/render.h"
#include "nlohmann/json.hpp"

namespace taskd::ledger {
namespace {

constexpr int kSchema = 1;
// Limits of the object itself; the report in it is a string.
constexpr JsonLimits kLimits = {.bytes = kMaxKeptBytes, .depth = 4, .values = 1000};
constexpr size_t kMostNameBytes = 90;  // job and task each

std::string Plain(const std::string& name) {
  std::string plain = name.substr(0, kMostNameBytes);
  for (char& c : plain) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  }
  if (!plain.empty() && plain[0] == '.') plain[0] = '_';
  return plain;
}

// FNV-1a has the same value in every release.
uint32_t Number(std::string_view text) {
  uint32_t number = 2166136261U;
  for (const char c : text) number = (number ^ static_cast<unsigned char>(c)) * 16777619U;
  return number;
}

}  // namespace

std::string RenderKept(const KeptLedger& ledger) {
  const Ledger::Kept& kept = ledger.kept;
  nlohmann::ordered_json json;
  json["schema"] = kSchema;
  json["job"] = ledger.job;
  json["task"] = ledger.task;
  json["boot_id"] = ledger.writer.boot_id;
  json["steady_ns"] = ledger.writer.steady_ns;
  json["unix_ns"] = ledger.writer.unix_ns;
  json["parent"] = ledger.writer.parent;
  json["done_until"] = kept.done_until;
  json["saved_step"] = kept.saved_step;
  json["base"] = kept.base;
  json["round"] = kept.round;
  json["ended"] = kept.ended;
  json["next"] = Name(kept.next);
  const Measured& measured = kept.report.measured;
  json["starts"] = measured.starts;
  json["checkpoints"] = measured.checkpoints;
  json["checkpoint_s"] = measured.checkpoint_s;
  json["report"] = RenderJson(kept.report, ledger.job);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<KeptLedger> ReadKept(std::string_view text) {
  absl::StatusOr<nlohmann::json> parsed = ParseJson(text, kLimits);
  if (!parsed.ok()) return parsed.status();
  const nlohmann::json& json = *parsed;
  if (!json.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  try {
    const int schema = json.value("schema", 0);
    if (schema > kSchema) {
      return absl::FailedPreconditionError(absl::StrCat("it is of a later release (schema ", schema, ")"));
    }
    if (schema != kSchema) return absl::InvalidArgumentError("it has no schema");
    KeptLedger ledger;
    std::string job;
    absl::StatusOr<Report> report = ReadJson(json.value("report", ""), &job);
    if (!report.ok()) return report.status();
    ledger.kept.report = *std::move(report);
    ledger.job = json.value("job", job);
    ledger.task = json.value("task", "");
    ledger.writer = {json.value("boot_id", ""), json.value("steady_ns", int64_t{0}), json.value("unix_ns", int64_t{0}),
                     json.value("parent", 0)};
    Measured& measured = ledger.kept.report.measured;
    measured.starts = json.value("starts", uint64_t{0});
    measured.checkpoints = json.value("checkpoints", uint64_t{0});
    measured.checkpoint_s = std::max(json.value("checkpoint_s", 0.0), 0.0);
    // An earlier release, or anyone who can write to the folder, may have written impossible values.
    ledger.kept.done_until = std::clamp(json.value("done_until", int64_t{-1}), int64_t{-1}, Ledger::kMostStep);
    ledger.kept.saved_step = std::clamp(json.value("saved_step", int64_t{-1}), int64_t{-1}, ledger.kept.done_until + 1);
    ledger.kept.base = std::clamp(json.value("base", int64_t{0}), int64_t{0}, ledger.kept.done_until + 1);
    ledger.kept.round = std::max(json.value("round", -1), -1);
    ledger.kept.ended = json.value("ended", false);
    ledger.kept.next = IncidentKindFromName(json.value("next", "")).value_or(IncidentKind::kRequeue);
    return ledger;
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("a part of it is of another kind: ", error.what()));
  }
}

std::string KeptName(const std::string& job, const std::string& task) {
  return absl::StrCat(Plain(job), task.empty() ? "" : ".", Plain(task), "-",
                      absl::Hex(Number(absl::StrCat(job, "\n", task)), absl::kZeroPad8));
}

}  // namespace taskd::ledger
