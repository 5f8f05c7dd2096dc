#include "policy/options.h"

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/printable.h"

namespace taskd::policy {
namespace {

using diagnosis::Cause;

constexpr double kMostHours = 24 * 366;
constexpr int64_t kMostSteps = 1'000'000'000;
constexpr int kMostNodes = 65536;

absl::Status Wrong(const char* flag, absl::string_view value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": '", Printable(std::string(value)), "' is not ", rule));
}

bool ReadReal(absl::string_view text, double low, double high, double* value) {
  return absl::SimpleAtod(absl::StripAsciiWhitespace(text), value) && std::isfinite(*value) && *value >= low &&
         *value <= high;
}

bool ReadCauses(absl::string_view text, std::bitset<diagnosis::kCauses>* causes) {
  causes->reset();
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    const std::string name(absl::StripAsciiWhitespace(word));
    int cause = 0;
    while (cause < diagnosis::kCauses && name != diagnosis::Name(static_cast<Cause>(cause))) ++cause;
    if (cause == diagnosis::kCauses || static_cast<Cause>(cause) == Cause::kUnknown) return false;
    causes->set(static_cast<size_t>(cause));
  }
  return true;
}

}  // namespace

When::When() {
  for (Cause cause : {Cause::kCompute, Cause::kMemory, Cause::kHost, Cause::kNetwork, Cause::kDataloader}) {
    causes.set(static_cast<size_t>(cause));
  }
}

absl::StatusOr<OnSlow> ParseOnSlow(const std::string& text) {
  const std::optional<OnSlow> value = FromName<OnSlow>(text, 5);
  if (!value) return Wrong("--on-slow", text, "report, rehearse, order, replace or drop");
  return *value;
}

absl::StatusOr<When> ParseWhen(const std::string& text) {
  constexpr char kFlag[] = "--on-slow-when";
  When when;
  std::set<std::string> given;
  if (absl::StripAsciiWhitespace(text).empty()) return when;
  for (absl::string_view whole : absl::StrSplit(text, ';')) {
    const absl::string_view part = absl::StripAsciiWhitespace(whole);
    const size_t end = part.find_first_of("=>");
    const std::string name(absl::StripAsciiWhitespace(part.substr(0, end)));
    absl::string_view value = end == absl::string_view::npos ? "" : part.substr(end);
    const bool is_cause = name == "cause";
    const bool has_sign = absl::ConsumePrefix(&value, is_cause ? "=" : ">=");
    value = absl::StripAsciiWhitespace(value);
    if (is_cause) {
      if (!has_sign || !ReadCauses(value, &when.causes)) {
        return Wrong(kFlag, part, "cause= and causes of a verdict, separated by commas (compute, memory, host, ...)");
      }
    } else if (name == "confidence") {
      if (!has_sign || !ReadReal(value, 0, 1, &when.confidence)) return Wrong(kFlag, part, "confidence>= and 0 to 1");
    } else if (name == "open") {
      if (!has_sign || !absl::ConsumeSuffix(&value, "steps") ||
          !absl::SimpleAtoi(absl::StripAsciiWhitespace(value), &when.open_steps) || when.open_steps < 0 ||
          when.open_steps > kMostSteps) {
        return Wrong(kFlag, part, "open>=N steps, N from 0 on");
      }
    } else if (name == "cost") {
      if (!has_sign || !absl::ConsumeSuffix(&value, "%") || !ReadReal(value, 0, 100, &when.cost_percent)) {
        return Wrong(kFlag, part, "cost>=P%, P from 0 to 100");
      }
    } else {
      return Wrong(kFlag, part, "one of cause=..., confidence>=..., open>=... steps, cost>=...%");
    }
    if (!given.insert(name).second) return Wrong(kFlag, part, absl::StrCat("the only '", name, "'"));
  }
  return when;
}

absl::StatusOr<Evictions> ParseEvictions(const std::string& text) {
  Evictions evictions;
  if (text.empty()) return evictions;
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &evictions.nodes) || evictions.nodes < 1 ||
      evictions.nodes > kMostNodes || !ReadReal(parts[1], 0, kMostHours, &evictions.hours) || evictions.hours == 0) {
    return Wrong("--evictions", text, "N/H: at most N nodes in H hours, N from 1 on, H above 0");
  }
  evictions.of_job.reset();
  return evictions;
}

absl::StatusOr<std::optional<double>> ParseRemaining(const std::string& text) {
  if (text.empty()) return std::nullopt;
  double hours = 0;
  if (!ReadReal(text, 0, kMostHours, &hours)) {
    return Wrong("--remaining", text, absl::StrCat("hours, 0 to ", kMostHours));
  }
  return hours;
}

absl::StatusOr<Options> ReadOptions(const OptionTexts& texts) {
  Options options;
  const absl::StatusOr<OnSlow> on_slow = ParseOnSlow(texts.on_slow.empty() ? Name(OnSlow::kReport) : texts.on_slow);
  if (!on_slow.ok()) return on_slow.status();
  if (*on_slow == OnSlow::kReplace || *on_slow == OnSlow::kDrop) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--on-slow: '", texts.on_slow, "' is not available in this version, report, rehearse and order are"));
  }
  absl::StatusOr<When> when = ParseWhen(texts.on_slow_when);
  if (!when.ok()) return when.status();
  const absl::StatusOr<std::optional<double>> remaining_h = ParseRemaining(texts.remaining);
  if (!remaining_h.ok()) return remaining_h.status();
  const absl::StatusOr<Evictions> evictions = ParseEvictions(texts.evictions);
  if (!evictions.ok()) return evictions.status();
  absl::StatusOr<std::vector<OrderTo>> order_to = ParseOrderTo(texts.order_to);
  if (!order_to.ok()) return order_to.status();
  if (*on_slow == OnSlow::kOrder && order_to->empty()) {
    return absl::InvalidArgumentError("--on-slow: 'order' needs a receiver of orders; give --order-to");
  }
  options.on_slow = *on_slow;
  options.when = *std::move(when);
  options.remaining_h = *remaining_h;
  options.evictions = *evictions;
  options.order_to = *std::move(order_to);
  return options;
}

std::string Text(const When& when) {
  std::vector<std::string> causes;
  for (int cause = 0; cause < diagnosis::kCauses; ++cause) {
    if (when.causes[static_cast<size_t>(cause)]) causes.push_back(diagnosis::Name(static_cast<Cause>(cause)));
  }
  return absl::StrFormat("cause=%s;confidence>=%g;open>=%d steps;cost>=%g%%", absl::StrJoin(causes, ","),
                         when.confidence, when.open_steps, when.cost_percent);
}

std::string Text(const Evictions& evictions) { return absl::StrFormat("%d/%g", evictions.nodes, evictions.hours); }

}  // namespace taskd::policy
