// A job on one page, to attach to a ticket: one HTML file without scripts that needs no network. It says what
// `taskd diagnose` says, and shows the picture that the manager's page shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/verdict.h"
#include "ledger/report.h"
#include "policy/action.h"
#include "view/history.h"

namespace taskd::view {

struct ReportEvent {
  int64_t time_ns = 0;  // Unix
  std::string kind;
  std::string text;
};

// Any text may be anything: it is shown as text.
struct ReportPage {
  std::string job;
  std::string source;   // where the marks come from: "the manager on node 0", "mark files in DIR"
  std::string version;  // TaskD's
  int64_t made_ns = 0;  // Unix
  diagnosis::Report report;
  std::vector<std::pair<std::string, std::string>> facts;  // what else stands at the top: name and value
  std::string hang;                                        // its sentence; empty: none
  std::string stacks;                                      // of that hang, merged
  std::optional<ledger::Report> goodput;                   // where the time went; none: nobody has kept a ledger
  std::optional<std::deque<policy::Action>> actions;       // decisions, oldest first; none: nothing is ever decided
  std::vector<ReportEvent> events;                         // oldest first
};

// Below 1 MiB, whatever the job; some 50 kB of a small one.
std::string RenderReportPage(const ReportPage& page, const History& history);

// What a browser may do with it: as a Content-Security-Policy, which the page has in itself, too.
inline constexpr const char* kReportPagePolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

}  // namespace taskd::view
