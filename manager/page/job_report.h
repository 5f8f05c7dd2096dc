// The job on one page, of what the manager knows.
#pragma once

#include <string>

#include "manager/page/job_sources.h"

namespace taskd::manager {

struct JobReport {
  std::string html;      // view/report_page.h
  std::string headline;  // what the page says, in one line: of the same moment
};

// From any thread; takes some ten milliseconds where ranks and steps are many.
JobReport RenderReport(const JobSources& sources);

}  // namespace taskd::manager
