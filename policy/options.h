// What the operator allows: `--on-slow` and the options beside it. Pure.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/order_to.h"
#include "diagnosis/verdict.h"
#include "policy/action.h"

namespace taskd::policy {

// Which verdicts are worth a decision.
struct When {
  std::bitset<diagnosis::kCauses> causes;  // by diagnosis::Cause
  double confidence = 0.95;                // at least
  int64_t open_steps = 50;                 // at least
  double cost_percent = 5;                 // of the step, at least

  When();
  friend bool operator==(const When&, const When&) = default;
};

struct Evictions {
  int nodes = 1;  // at most, in
  double hours = 1;
  std::optional<int> of_job = 3;  // and of the whole job; empty: any number

  friend bool operator==(const Evictions&, const Evictions&) = default;
};

struct Options {
  OnSlow on_slow = OnSlow::kReport;
  When when;
  // From the begin of this attempt on; empty: as long as the job has run so far, at most kMostRemainingH.
  std::optional<double> remaining_h;
  Evictions evictions;
  std::vector<OrderTo> order_to = {};
};

// As the operator gave them; empty: the default.
struct OptionTexts {
  std::string on_slow, on_slow_when, remaining, evictions;
  std::string order_to = {};
};

inline constexpr double kMostRemainingH = 24;

// INVALID_ARGUMENT, in one line: the flag, the value and the rule.
absl::StatusOr<OnSlow> ParseOnSlow(const std::string& text);
// "cause=compute,host;confidence>=0.9;open>=100 steps;cost>=3%": each part may be missing.
absl::StatusOr<When> ParseWhen(const std::string& text);
// "N/H": whole N from 1 on, H above 0.
absl::StatusOr<Evictions> ParseEvictions(const std::string& text);
// Hours, 0 or more; "": empty.
absl::StatusOr<std::optional<double>> ParseRemaining(const std::string& text);

// All of them. INVALID_ARGUMENT also for a value of --on-slow that this version cannot carry out, and for orders to nobody.
// Whether the receivers are there is for CheckOrderTo().
absl::StatusOr<Options> ReadOptions(const OptionTexts& texts);

// As ParseWhen and ParseEvictions take them.
std::string Text(const When& when);
std::string Text(const Evictions& evictions);

}  // namespace taskd::policy
