#include "common/metrics_text.h"

#include <cmath>

#include "common/printable.h"
#include "fmt/format.h"

namespace taskd {
namespace {

constexpr size_t kMaxLabelBytes = 256;

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// No line feed is left in it.
std::string Escaped(std::string_view value) {
  std::string escaped;
  for (char c : Printable(value, kMaxLabelBytes)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

void MetricsText::Begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::AddSample(std::string_view suffix, const Labels& labels, std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char separator = '{';
  for (const auto& [label, text] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", separator, label, Escaped(text));
    separator = ',';
  }
  text_ += fmt::format("{} {}\n", labels.empty() ? "" : "}", value);
}

void MetricsText::Add(double value, const Labels& labels) { AddSample("", labels, NumberText(value)); }

void MetricsText::Add(uint64_t value, const Labels& labels) { AddSample("", labels, fmt::format("{}", value)); }

void MetricsText::Histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                            std::span<const uint64_t> counts, double sum) {
  Begin(name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    AddSample("_bucket", {{"le", i < bounds.size() ? NumberText(bounds[i]) : "+Inf"}}, fmt::format("{}", below));
  }
  AddSample("_sum", {}, NumberText(sum));
  AddSample("_count", {}, fmt::format("{}", below));
}

}  // namespace taskd
