// Where the job's time went, as a section of the report (report_page.h): the ledger's sentence, all rank-seconds as one
// bar, the incidents that cost most, what would pay. The page's panel, manager/page/web/goodput.js, says the same.
#pragma once

#include <string>

#include "ledger/report.h"

namespace taskd::view {

// HTML; its classes are in kGoodputStyle.
std::string GoodputSection(const ledger::Report& report);

extern const char* const kGoodputStyle;

}  // namespace taskd::view
