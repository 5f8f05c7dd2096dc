// Renders the diagnosis of other tools' files for people and for programs: the report, and what the files add to it.
#pragma once

#include <string>

#include "readers/diagnose_sources.h"

namespace taskd::readers {

// One line: diagnosis::RenderJson's object, with "sources" if there are any.
std::string RenderJson(const SourcesDiagnosis& diagnosis, const std::string& job);
std::string RenderText(const SourcesDiagnosis& diagnosis, const std::string& job);

}  // namespace taskd::readers
