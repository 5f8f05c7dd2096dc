#include "common/metrics_text.h"

#include <array>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(MetricsTextTest, SamplesFollowTheirMetric) {
  MetricsText metrics;
  metrics.Gauge("a_ratio", "A share.", 0.25);
  metrics.Begin("b_total", "counter", "Things.");
  metrics.Add(uint64_t{18446744073709551615U}, {{"kind", "x"}, {"rank", "3"}});
  metrics.Begin("c_step", "gauge", "Not known yet.");
  EXPECT_EQ(metrics.text(),
            "# HELP a_ratio A share.\n# TYPE a_ratio gauge\na_ratio 0.25\n"
            "# HELP b_total Things.\n# TYPE b_total counter\nb_total{kind=\"x\",rank=\"3\"} 18446744073709551615\n"
            "# HELP c_step Not known yet.\n# TYPE c_step gauge\n");
}

TEST(MetricsTextTest, BucketsAreCumulative) {
  MetricsText metrics;
  metrics.Histogram("d_seconds", "Durations.", std::array{0.1, 1.0}, std::array<uint64_t, 3>{2, 3, 1}, 4.5);
  EXPECT_EQ(metrics.text(),
            "# HELP d_seconds Durations.\n# TYPE d_seconds histogram\n"
            "d_seconds_bucket{le=\"0.1\"} 2\nd_seconds_bucket{le=\"1\"} 5\nd_seconds_bucket{le=\"+Inf\"} 6\n"
            "d_seconds_sum 4.5\nd_seconds_count 6\n");
}

TEST(MetricsTextTest, AnyTextIsALabelsValue) {
  MetricsText metrics;
  metrics.Begin("e_info", "gauge", "Names.");
  metrics.Add(1.0, {{"job", "a\"b\\c\nd\xff"}});
  EXPECT_EQ(metrics.text(), "# HELP e_info Names.\n# TYPE e_info gauge\ne_info{job=\"a\\\"b\\\\c\\\\nd\\\\xff\"} 1\n");
}

TEST(MetricsTextTest, WhatIsNoNumberIsSaidAsPrometheusReadsIt) {
  MetricsText metrics;
  metrics.Begin("f", "gauge", "F.");
  metrics.Add(std::numeric_limits<double>::infinity());
  metrics.Add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(metrics.text(), "# HELP f F.\n# TYPE f gauge\nf +Inf\nf NaN\n");
}

}  // namespace
}  // namespace taskd
