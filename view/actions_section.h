// The decisions on slow nodes, as a section of the report (report_page.h). The page's panel,
// manager/page/web/actions.js, says the same.
#pragma once

#include <deque>
#include <string>

#include "policy/action.h"

namespace taskd::view {

// HTML. `actions`: oldest first; the newest kMostActions are shown.
std::string ActionsSection(const std::deque<policy::Action>& actions);

inline constexpr size_t kMostActions = 20;

}  // namespace taskd::view
