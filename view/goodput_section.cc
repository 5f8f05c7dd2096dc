#include "view/goodput_section.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ledger/render.h"
#include "view/html.h"

namespace taskd::view {
namespace {

using ledger::Category;
using ledger::Incident;
using ledger::Seconds;

constexpr size_t kMostIncidents = 10;
constexpr size_t kMostNumbers = 16;  // of ranks or nodes in a line
constexpr size_t kMostTextBytes = 1024;

std::string SecondsText(double seconds) { return absl::StrFormat("%.*f", seconds < 100 ? 1 : 0, seconds); }

std::string Shares(const Seconds& seconds, double all) {
  std::string bar, keys;
  for (size_t i = 0; i < ledger::kCategories; ++i) {
    if (seconds[i] <= 0) continue;
    const char* name = Name(static_cast<Category>(i));
    const double share = seconds[i] / all;
    absl::StrAppendFormat(&bar, "<span class=\"share-%s\" style=\"flex-grow:%.6f\" title=\"%s %.1f %%\"></span>", name,
                          share, name, 100 * share);
    absl::StrAppendFormat(&keys, "<span class=\"key\"><i class=\"share-%s\"></i>%s <b>%.1f %%</b></span>\n", name, name,
                          100 * share);
  }
  return absl::StrCat("<div class=\"shares\">", bar, "</div>\n<p class=\"quiet\">", keys, "</p>\n");
}

std::string List(const char* name, const std::vector<int>& numbers) {
  if (numbers.empty()) return "";
  const size_t shown = std::min(numbers.size(), kMostNumbers);
  return absl::StrCat(name, numbers.size() > 1 ? "s " : " ",
                      absl::StrJoin(numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(shown), ", "),
                      shown < numbers.size() ? " and more" : "");
}

std::string What(const Incident& incident) {
  if (!incident.text.empty()) return incident.text;
  const std::string ranks = List("rank", incident.ranks), nodes = List("node", incident.nodes);
  return absl::StrCat(ranks, ranks.empty() || nodes.empty() ? "" : "; ", nodes);
}

std::string Row(const Incident& incident) {
  std::vector<std::string> hops;
  for (const auto& [category, rank_s] : ledger::Hops(incident.seconds)) {
    hops.push_back(absl::StrCat(Name(category), " ", SecondsText(rank_s)));
  }
  return absl::StrCat("<tr><td>", incident.number, "</td><td class=\"w\">", TimeText(incident.time_ns),
                      "</td><td class=\"w\">", Name(incident.kind), "</td><td>", Html(What(incident), kMostTextBytes),
                      "</td><td>", SecondsText(ledger::Sum(incident.seconds)), "</td><td>", absl::StrJoin(hops, ", "),
                      "</td></tr>\n");
}

std::string Incidents(const ledger::Report& report) {
  const std::array<uint64_t, ledger::kIncidentKinds> counts = report.incident_counts();
  const uint64_t count = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (count == 0) return "<p class=\"quiet\">Nothing has interrupted the job.</p>\n";
  std::vector<const Incident*> dearest;
  for (const Incident& incident : report.incidents) dearest.push_back(&incident);
  std::stable_sort(dearest.begin(), dearest.end(), [](const Incident* a, const Incident* b) {
    return ledger::Sum(a->seconds) > ledger::Sum(b->seconds);
  });
  if (dearest.size() > kMostIncidents) dearest.resize(kMostIncidents);
  std::string html =
      "<h3>What interrupted it, the dearest first</h3>\n<table>\n<tr><th>no.</th><th>time</th><th>kind</th>"
      "<th>what</th><th>rank-seconds</th><th>of them</th></tr>\n";
  for (const Incident* incident : dearest) absl::StrAppend(&html, Row(*incident));
  absl::StrAppend(&html, "</table>\n");
  if (count > dearest.size()) absl::StrAppend(&html, "<p class=\"quiet\">and ", count - dearest.size(), " more</p>\n");
  return html;
}

std::string Advice(const std::vector<ledger::Advice>& advice) {
  if (advice.empty()) return "";
  std::string html = "<h3>What would pay</h3>\n";
  for (const ledger::Advice& one : advice) {
    absl::StrAppend(&html, "<p>", Html(one.text, kMostTextBytes), " <span class=\"quiet\">(up to ",
                    ledger::Amount(one.saves_rank_s), ")</span></p>\n");
  }
  return html;
}

}  // namespace

// The page's, manager/page/web/style.css: hues by what it is about, plain and striped in turn; what nobody can tell is
// hatched.
const char* const kGoodputStyle =
    ".shares{display:flex;gap:2px;height:26px;margin:10px 0}.shares>span{flex-basis:0;min-width:2px}"
    ".key{display:inline-block;margin-right:18px}.key i{margin-left:0;border:0}"
    ".share-queue{background:#4d5966}"
    ".share-waiting{background:repeating-linear-gradient(45deg,#4d5966 0 4px,#6f829b 4px 8px)}"
    ".share-launch{background:#ce5e12}"
    ".share-link_up{background:repeating-linear-gradient(45deg,#ce5e12 0 4px,#802e06 4px 8px)}"
    ".share-warm_up{background:#802e06}.share-productive{background:#3b6fb6}.share-data{background:#b8860b}"
    ".share-checkpoint{background:#7a4fa3}"
    ".share-straggler{background:repeating-linear-gradient(45deg,#b8860b 0 4px,#5c4306 4px 8px)}"
    ".share-other{background:#6f829b}"
    ".share-redone{background:repeating-linear-gradient(45deg,#3b6fb6 0 4px,#1b3a66 4px 8px)}"
    ".share-hang{background:#16202c}"
    ".share-restart{background:repeating-linear-gradient(45deg,#802e06 0 4px,#16202c 4px 8px)}"
    ".share-suspended,.share-unmarked,.share-unknown,.key .share-suspended,.key .share-unmarked,.key .share-unknown"
    "{border:1px solid #4d5966}"
    ".share-suspended{background:repeating-linear-gradient(90deg,#4d5966 0 3px,#fff 3px 6px)}"
    ".share-unmarked{background:repeating-linear-gradient(45deg,#4d5966 0 1px,#fff 1px 5px)}"
    ".share-unknown{background:repeating-linear-gradient(-45deg,#4d5966 0 1px,#fff 1px 5px)}";

std::string GoodputSection(const ledger::Report& report) {
  const Seconds seconds = report.seconds();
  const double all = ledger::Sum(seconds);
  std::string html = "<section id=\"goodput\"><h2>Where the ranks' time went</h2>\n";
  if (all > 0) {
    absl::StrAppend(&html, "<p>", Html(ledger::Sentence(report)), "</p>\n", Shares(seconds, all), Incidents(report),
                    Advice(report.advice));
  } else {
    absl::StrAppend(&html, "<p class=\"quiet\">There is no time yet.</p>\n");
  }
  return html + "</section>\n";
}

}  // namespace taskd::view
