// The job on one page, of what the manager knows.
#pragma once

#include <string>

#include "manager/page/job_sources.h"

namespace taskd::manager {

// HTML (view/report_page.h). From any thread; takes some ten milliseconds where ranks and steps are many.
std::string RenderReport(const JobSources& sources);

}  // namespace taskd::manager
