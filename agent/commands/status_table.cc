#include "agent/commands/status_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "agent/commands/control_client.h"
#include "common/printable.h"
#include "common/progress.h"
#include "common/ranges_text.h"
#include "marks/mark_files.h"
#include "proto/status_json.h"

namespace taskd::commands {
namespace {

constexpr char kAsWanted[] = "as wanted";
constexpr size_t kMaxStates = 24;
constexpr size_t kShownParts = 4;    // of a list of ranks
constexpr int64_t kStepsBehind = 2;  // what ranks that wait for each other may differ by

// What becomes of the wanted state of the switch in a rank.
std::string StateOf(const v1::RankStatus& rank, uint64_t wanted_revision) {
  if (!rank.attached()) return absl::StrCat("gone: ", Printable(rank.reason()));
  if (rank.failed_revision() != 0) return Printable(rank.reason());
  return rank.applied_revision() == wanted_revision ? kAsWanted : "not switched yet";
}

// Then its proxies have ended, too.
bool HasEnded(const v1::JobStatus& status) { return status.supervision().state() == v1::SupervisionStatus::ENDED; }

// What ranks in one state have in common.
struct Line {
  std::vector<int> ranks;
  int64_t first_step = -1, last_step = -1;  // the least and the most; -1: none has one
  std::vector<double> step_ms;
  uint64_t marks = 0;
  uint64_t lost = 0;

  void Add(const v1::RankStatus& rank) {
    ranks.push_back(rank.rank());
    if (rank.step() >= 0) {
      first_step = first_step < 0 ? rank.step() : std::min<int64_t>(first_step, rank.step());
      last_step = std::max<int64_t>(last_step, rank.step());
      step_ms.push_back(rank.step_ms());
    }
    const v1::MarkCounts& counts = rank.marks();
    marks += counts.step() + counts.fp() + counts.dataloader() + counts.save_checkpoint() + counts.communication() +
             counts.other();
    lost += rank.lost();
  }

  std::string Text(const std::string& state) {
    std::string steps = "-", median = "-", longest = "-";
    if (!step_ms.empty()) {
      steps = first_step == last_step ? absl::StrCat(last_step) : absl::StrCat(first_step, "-", last_step);
      std::sort(step_ms.begin(), step_ms.end());
      median = absl::StrFormat("%.1f", step_ms[(step_ms.size() - 1) / 2]);
      longest = absl::StrFormat("%.1f", step_ms.back());
    }
    return absl::StrFormat("%7d %15s %9s %9s %12d %9d  %s: ranks %s\n", ranks.size(), steps, median, longest, marks,
                           lost, state, FormatRanges(ranks, kShownParts));
  }
};

// That most ranks have reached, of those that have one; -1: none has.
int64_t NewestStep(const v1::JobStatus& status) {
  std::vector<int64_t> steps;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::RankStatus& rank : node.ranks()) steps.push_back(rank.step());
  }
  return StepOfMost(std::move(steps));
}

std::string KindName(const v1::SupervisionEvent& event) {
  return absl::AsciiStrToLower(v1::SupervisionEvent::Kind_Name(event.kind()));
}

// The newest few; --json has all.
std::string RenderSupervision(const v1::SupervisionStatus& supervision) {
  std::string text;
  if (!supervision.waits_for().empty()) {
    absl::StrAppendFormat(&text, "rendezvous: waits for %s for %.0f s\n", Printable(supervision.waits_for()),
                          supervision.waits_s());
  }
  if (supervision.state() == v1::SupervisionStatus::UNKNOWN && supervision.events_size() == 0) return text;
  absl::StrAppend(&text, "job is ", proto::NameOf(supervision.state()), "  restarts: ", supervision.restarts());
  if (supervision.rank_exits() != 0) absl::StrAppend(&text, "  ranks ended: ", supervision.rank_exits());
  if (supervision.hung_ranks() != 0) absl::StrAppend(&text, "  hung: ", supervision.hung_ranks());
  absl::StrAppend(&text, "\n");
  constexpr int kShown = 5;
  for (int i = std::max(0, supervision.events_size() - kShown); i < supervision.events_size(); ++i) {
    const v1::SupervisionEvent& event = supervision.events(i);
    absl::StrAppend(&text, "  ",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(event.time_ns()), absl::LocalTimeZone()),
                    " ", KindName(event));
    if (event.rank() >= 0) absl::StrAppend(&text, " rank ", event.rank());
    if (event.node() >= 0) absl::StrAppend(&text, " node ", event.node());
    if (event.signal() != 0) {
      absl::StrAppend(&text, " signal ", event.signal());
    } else if (event.kind() == v1::SupervisionEvent::EXITED || event.kind() == v1::SupervisionEvent::ENDED) {
      absl::StrAppend(&text, " code ", event.code());
    }
    // Stacks have many lines; the first has the number of groups.
    const std::string_view message = event.message();
    if (!message.empty()) absl::StrAppend(&text, ": ", Printable(message.substr(0, message.find('\n'))));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string RenderMarkFiles(const v1::JobStatus& status) {
  std::vector<std::pair<int, MarkFiles>> nodes;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!node.connected() || !node.has_mark_files()) continue;
    nodes.push_back({node.node(), {node.mark_files().dir(), node.mark_files().error()}});
  }
  if (nodes.empty()) return "";
  return absl::StrCat("mark files: ", Printable(MarkFilesText(nodes), kShownLineBytes), "\n");
}

// Nodes whose names no verdict may give away; why, of the first.
std::string RenderUnnamed(const v1::JobStatus& status) {
  std::vector<int> unnamed;
  std::string why;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!node.connected() || node.node_name_refusal().empty()) continue;
    unnamed.push_back(node.node());
    if (why.empty()) why = node.node_name_refusal();
  }
  if (unnamed.empty()) return "";
  return absl::StrCat("no node name: nodes ", FormatRanges(unnamed, kShownParts), ": ", Printable(why, kShownLineBytes),
                      "\n");
}

std::string RenderNotSupported(const v1::JobStatus& status) {
  if (status.not_supported().empty()) return "";
  return absl::StrCat("not supported: ", Printable(absl::StrJoin(status.not_supported(), ", "), kShownLineBytes), "\n");
}

}  // namespace

std::string ListRanks(const v1::JobStatus& status) {
  std::string text;
  for (const v1::NodeStatus& node : status.nodes()) {
    const bool has_own_name = !node.node_name().empty() && node.node_name() != node.host();
    absl::StrAppend(
        &text, "\nnode ", node.node(), " (", has_own_name ? absl::StrCat(Printable(node.node_name()), ", host ") : "",
        Printable(node.host()), ")",
        HasEnded(status)    ? ""
        : !node.connected() ? ": its proxy is not connected"
        : node.silent_s() != 0
            ? absl::StrCat(": its proxy has been silent for ", node.silent_s(), " s, hangs are not watched for")
            : "",
        "\n");
    if (node.ranks_size() == 0) {
      absl::StrAppend(&text, "  no ranks\n");
      continue;
    }
    absl::StrAppendFormat(&text, "%6s %7s %8s %9s %9s %11s %11s %14s %9s %6s %8s %8s  %s\n", "rank", "step", "step ms",
                          "#step", "#forward", "#dataloader", "#checkpoint", "#communication", "#other", "lost",
                          "ns/mark", "pid", "state");
    for (const v1::RankStatus& rank : node.ranks()) {
      const v1::MarkCounts& marks = rank.marks();
      absl::StrAppendFormat(&text, "%6d %7s %8s %9d %9d %11d %11d %14d %9d %6d %8.0f %8d  %s\n", rank.rank(),
                            rank.step() < 0 ? "-" : absl::StrCat(rank.step()),
                            rank.step() < 0 ? "-" : absl::StrFormat("%.1f", rank.step_ms()), marks.step(), marks.fp(),
                            marks.dataloader(), marks.save_checkpoint(), marks.communication(), marks.other(),
                            rank.lost(), rank.overhead_ns_per_mark(), rank.pid(),
                            StateOf(rank, status.wanted().revision()));
    }
  }
  return text;
}

std::string SumUpRanks(const v1::JobStatus& status) {
  const int64_t newest = NewestStep(status);
  std::map<std::string, Line> lines;
  std::vector<int> lost_nodes, silent_nodes;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!node.connected() && !HasEnded(status)) lost_nodes.push_back(node.node());
    if (node.silent_s() != 0 && !HasEnded(status)) silent_nodes.push_back(node.node());
    for (const v1::RankStatus& rank : node.ranks()) {
      std::string state =
          node.connected() || HasEnded(status) ? StateOf(rank, status.wanted().revision()) : "no proxy connected";
      if (state == kAsWanted && rank.step() >= 0 && rank.step() < newest - kStepsBehind) {
        state = "as wanted, but steps behind";
      } else if (state == kAsWanted && IsFarAhead(rank.step(), newest)) {
        state = "as wanted, but steps far ahead";
      } else if (state == kAsWanted && rank.lost() != 0) {
        state = "as wanted, but marks were lost";
      }
      lines[state].Add(rank);
    }
  }
  // Those as wanted, then by the first rank.
  std::vector<std::pair<const std::string, Line>*> order;
  for (auto& line : lines) order.push_back(&line);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const bool wanted = a->first == kAsWanted;
    if (wanted != (b->first == kAsWanted)) return wanted;
    return a->second.ranks.front() < b->second.ranks.front();
  });
  std::string text;
  if (!lost_nodes.empty()) {
    absl::StrAppend(&text, "no proxy connected on nodes ", FormatRanges(lost_nodes), "\n");
  }
  if (!silent_nodes.empty()) {
    absl::StrAppend(&text, "proxies are silent on nodes ", FormatRanges(silent_nodes),
                    ", hangs are not watched for there\n");
  }
  absl::StrAppendFormat(&text, "\n%7s %15s %9s %9s %12s %9s  %s\n", "#ranks", "steps", "step ms", "longest", "#marks",
                        "lost", "state");
  size_t unshown = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < kMaxStates) {
      absl::StrAppend(&text, order[i]->second.Text(order[i]->first));
    } else {
      unshown += order[i]->second.ranks.size();
    }
  }
  if (unshown != 0)
    absl::StrAppend(&text, "  and ", CountOf(static_cast<int64_t>(unshown), "rank"), " in ",
                    CountOf(static_cast<int64_t>(order.size() - kMaxStates), "more state"), "\n");
  absl::StrAppend(&text, "each rank: --all\n");
  return text;
}

std::string RenderStatus(const v1::JobStatus& status, int most_listed, bool is_kept) {
  std::string text = absl::StrCat("job: ", status.job().empty() ? "(any)" : Printable(status.job()));
  if (!status.task_id().empty()) absl::StrAppend(&text, "  task: ", Printable(status.task_id()));
  absl::StrAppendFormat(&text, "  manager %s %.0f s\nwanted: %s (revision %d)\n",
                        is_kept ? "was up for" : "up:", status.uptime_s(), KindsText(status.wanted().kinds()),
                        status.wanted().revision());
  int ranks = 0, attached = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    ranks += node.ranks_size();
    for (const v1::RankStatus& rank : node.ranks()) attached += node.connected() && rank.attached() ? 1 : 0;
  }
  absl::StrAppend(&text, "nodes: ", status.nodes_size(), "  ranks: ", attached, " attached of ", ranks, " known");
  if (status.expected_ranks() != 0) absl::StrAppend(&text, ", ", status.expected_ranks(), " expected");
  return absl::StrCat(text, "\n", RenderMarkFiles(status), RenderUnnamed(status), RenderNotSupported(status),
                      RenderSupervision(status.supervision()),
                      "diagnosis: ", Printable(status.diagnosis().headline(), kShownLineBytes), "\n",
                      ranks <= most_listed ? ListRanks(status) : SumUpRanks(status));
}

}  // namespace taskd::commands
