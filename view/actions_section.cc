#include "view/actions_section.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "policy/policy.h"
#include "view/html.h"

namespace taskd::view {
namespace {

std::string NodeOf(const policy::Action& action) {
  if (action.node < 0) return "";
  const std::string& name = action.node_name.empty() ? action.host : action.node_name;
  return name.empty() ? absl::StrCat(action.node) : absl::StrCat(action.node, " (", name, ")");
}

std::string ActionRow(const policy::Action& action) {
  const std::string decision = action.refused_by ? absl::StrCat("refused: ", Name(*action.refused_by))
                                                 : absl::StrCat(Name(action.decision), ", ", Name(action.state));
  std::string orders;
  for (const policy::Order& order : action.orders) {
    absl::StrAppend(&orders, "<br>", Html(order.to), ": ", Name(order.outcome), ", ", Html(order.text, 1024));
  }
  return absl::StrCat("<tr><td class=\"w\">", TimeText(action.time_ns), "</td><td>", Html(NodeOf(action)),
                      "</td><td class=\"w\">", decision, "</td><td>", Html(action.reason, 1024), orders,
                      "</td></tr>\n");
}

}  // namespace

std::string ActionsSection(const std::deque<policy::Action>& actions) {
  std::string html = absl::StrCat("<section id=\"actions\"><h2>What was decided about slow nodes</h2>\n<p>",
                                  Html(policy::Summary(actions)), "</p>\n");
  if (!actions.empty()) {
    absl::StrAppend(&html, "<table>\n<tr><th>time</th><th>node</th><th>decision</th><th>reason</th></tr>\n");
    const size_t shown = std::min(actions.size(), kMostActions);
    for (size_t i = 0; i < shown; ++i) absl::StrAppend(&html, ActionRow(actions[actions.size() - 1 - i]));
    absl::StrAppend(&html, "</table>\n");
    if (actions.size() > shown) {
      absl::StrAppend(&html, "<p class=\"quiet\">and ", actions.size() - shown, " before them</p>\n");
    }
  }
  return html + "</section>\n";
}

}  // namespace taskd::view
