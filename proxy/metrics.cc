#include "proxy/metrics.h"

#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics_text.h"

namespace taskd::proxy {
namespace {

using Figures = std::vector<Node::RankFigures>;

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void AddRanks(const Figures& ranks, int node_rank, const std::string& host, MetricsText& metrics) {
  metrics.Begin("taskd_rank_info", "gauge", "A rank's process; always 1.");
  for (const Node::RankFigures& rank : ranks) {
    metrics.Add(uint64_t{1}, {{"rank", absl::StrCat(rank.report.rank)},
                              {"local_rank", rank.local_rank < 0 ? "" : absl::StrCat(rank.local_rank)},
                              {"node", absl::StrCat(node_rank)},
                              {"pid", absl::StrCat(rank.report.pid)},
                              {"host", host}});
  }
  metrics.Begin("taskd_rank_attached", "gauge", "1 while its process lives and can be switched.");
  for (const Node::RankFigures& rank : ranks) {
    metrics.Add(uint64_t{rank.report.attached}, {{"rank", absl::StrCat(rank.report.rank)}});
  }
  metrics.Begin("taskd_rank_step", "gauge", "The newest step that it has ended.");
  for (const Node::RankFigures& rank : ranks) {
    if (rank.report.step < 0) continue;
    metrics.Add(static_cast<uint64_t>(rank.report.step), {{"rank", absl::StrCat(rank.report.rank)}});
  }
  metrics.Begin("taskd_rank_last_mark_timestamp_seconds", "gauge", "When it recorded the newest mark in its files.");
  for (const Node::RankFigures& rank : ranks) {
    if (rank.last_mark_ns == 0) continue;
    metrics.Add(static_cast<double>(rank.last_mark_ns) / 1e9, {{"rank", absl::StrCat(rank.report.rank)}});
  }
  metrics.Begin("taskd_rank_phase_seconds_total", "counter", "What its steps were spent on.");
  for (const Node::RankFigures& rank : ranks) {
    for (size_t i = 0; i < kStepPhases.size(); ++i) {
      metrics.Add(static_cast<double>(rank.phases_ns[i]) / 1e9,
                  {{"rank", absl::StrCat(rank.report.rank)}, {"phase", kStepPhases[i]}});
    }
  }
}

void AddMarks(const Figures& ranks, MetricsText& metrics) {
  metrics.Begin("taskd_rank_marks_total", "counter", "Marks and ranges in its files.");
  for (const Node::RankFigures& rank : ranks) {
    for (int i = 0; i < kNumMarkCounts; ++i) {
      metrics.Add(rank.report.marks[static_cast<size_t>(i)],
                  {{"rank", absl::StrCat(rank.report.rank)}, {"kind", MarkCountName(i)}});
    }
  }
  metrics.Begin("taskd_rank_marks_lost_total", "counter", "Marks overwritten before they were read.");
  for (const Node::RankFigures& rank : ranks) {
    metrics.Add(rank.report.lost, {{"rank", absl::StrCat(rank.report.rank)}});
  }
  metrics.Begin("taskd_mark_bytes_total", "counter", "Bytes written to its files.");
  for (const Node::RankFigures& rank : ranks) {
    metrics.Add(rank.mark_bytes, {{"rank", absl::StrCat(rank.report.rank)}});
  }
}

}  // namespace

HttpHandler MakeMetrics(const Node* node, int node_rank, const std::string& host) {
  return [node, node_rank, host](const HttpRequest&) {
    const Figures ranks = node->Figures();
    MetricsText metrics;
    metrics.Begin("taskd_build_info", "gauge", "The proxy's version; always 1.");
    metrics.Add(uint64_t{1}, {{"version", TASKD_VERSION}});
    AddRanks(ranks, node_rank, host, metrics);
    AddMarks(ranks, metrics);
    metrics.Counter("taskd_proxy_cpu_seconds_total", "Processor time of the proxy.", CpuSeconds());
    metrics.Gauge("taskd_proxy_backlog_bytes", "Marks in memory because their files cannot be written.",
                  static_cast<uint64_t>(node->backlog_bytes()));
    HttpResponse response;
    response.content_type = MetricsText::kContentType;
    response.body = std::make_shared<const std::string>(metrics.text());
    return response;
  };
}

}  // namespace taskd::proxy
