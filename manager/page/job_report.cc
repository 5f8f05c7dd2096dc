#include "manager/page/job_report.h"

#include <unistd.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/ranges_text.h"
#include "common/realtime.h"
#include "diagnosis/render.h"
#include "manager/page/census.h"
#include "view/report_page.h"

namespace taskd::manager {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string SwitchText(const SwitchState& wanted, const Census& census) {
  std::vector<std::string> on;
  for (int i = 0; i < kNumSwitches; ++i) {
    if ((wanted.effective >> i & 1) != 0) on.emplace_back(SwitchKindWord(static_cast<SwitchKind>(i)));
  }
  std::string text = on.empty() ? "all off" : absl::StrCat(absl::StrJoin(on, ", "), " on");
  if (!census.unanswered.empty())
    absl::StrAppend(&text, "; no answer of ", CountOf(static_cast<int64_t>(census.unanswered.size()), "rank"));
  if (!census.failed.empty())
    absl::StrAppend(&text, "; ", CountOf(static_cast<int64_t>(census.failed.size()), "rank"),
                    " cannot: ", census.failure);
  return text;
}

}  // namespace

JobReport RenderReport(const JobSources& sources) {
  const JobSnapshot snapshot = sources.core->Snapshot();
  const Census census = TakeCensus(snapshot);
  const SupervisionSnapshot supervision = sources.supervision->Snapshot();
  view::ReportPage page;
  page.job = sources.core->shape().name();
  page.source = absl::StrCat("the manager on ", HostName());
  page.version = TASKD_VERSION;
  page.made_ns = RealtimeNs();
  page.report = *sources.diagnosis->report();
  std::string headline = diagnosis::WriteHeadline(page.report);
  const bool stepped = sources.history->newest().has_value();
  page.facts.emplace_back("state", JobStateName(supervision.state, page.report.state, census.attached != 0, stepped));
  if (!sources.core->shape().task_id.empty()) page.facts.emplace_back("task", sources.core->shape().task_id);
  page.facts.emplace_back(
      "nodes connected", absl::StrCat(snapshot.nodes.size() - census.lost_nodes.size(), " of ", snapshot.nodes.size()));
  page.facts.emplace_back("ranks attached", absl::StrCat(census.attached, " of ", census.known));
  page.facts.emplace_back("self time known",
                          absl::StrCat(std::floor(100 * CoverageOf(page.report)), " % of the ranks"));
  page.facts.emplace_back("marks", SwitchText(snapshot.wanted, census));
  if (!census.mark_files.empty()) page.facts.emplace_back("mark files", census.mark_files);
  if (!sources.not_supported.empty())
    page.facts.emplace_back("not supported", absl::StrJoin(sources.not_supported, ", "));
  page.facts.emplace_back("restarts", absl::StrCat(supervision.restarts));
  if (supervision.hang.has_value()) {
    const std::string text = supervision.hang_answer().text;
    page.hang = std::string(absl::StripPrefix(text, "hang: "));  // its kind stands beside it
    headline = absl::StrCat("hung: ", page.hang);
    page.stacks = sources.events->NewestStacks(HangSinceNs(supervision)).detail;
  }
  page.goodput = *sources.ledger->report();
  if (sources.actions->decides()) page.actions = sources.actions->List();
  for (LoggedEvent& event : sources.events->Since(0, EventLog::kMaxEvents)) {
    page.events.push_back({event.time_ns, std::move(event.kind), std::move(event.text)});
  }
  return {view::RenderReportPage(page, *sources.history), std::move(headline)};
}

}  // namespace taskd::manager
