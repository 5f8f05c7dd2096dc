// The text format of Prometheus, version 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/), as
// /metrics of the manager and of a proxy give it. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taskd {

class MetricsText {
 public:
  // Values may be any text: they are made printable and escaped. Names are [a-z_]+.
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // The metric that Add's samples belong to. type: gauge, counter or histogram. One without samples has no data yet.
  void Begin(std::string_view name, std::string_view type, std::string_view help);
  void Add(double value, const Labels& labels = {});
  void Add(uint64_t value, const Labels& labels = {});

  template <typename Number>
  void Gauge(std::string_view name, std::string_view help, Number value) {
    Begin(name, "gauge", help);
    Add(value);
  }
  template <typename Number>
  void Counter(std::string_view name, std::string_view help, Number value) {
    Begin(name, "counter", help);
    Add(value);
  }
  // counts: of the values up to each bound and above the one before it; one more, of those above all bounds.
  void Histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                 std::span<const uint64_t> counts, double sum);

  const std::string& text() const { return text_; }

 private:
  void AddSample(std::string_view suffix, const Labels& labels, std::string_view value);

  std::string_view name_;
  std::string text_;
};

}  // namespace taskd
