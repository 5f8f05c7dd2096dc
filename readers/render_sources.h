// The answer from other tools' files, for people and for programs: the report as ever, and what the files add to it.
#pragma once

#include <string>

#include "readers/diagnose_sources.h"

namespace taskd::readers {

// One line: diagnosis::RenderJson's object, with "sources" where there are any.
std::string RenderJson(const SourcesDiagnosis& diagnosis, const std::string& job);
std::string RenderText(const SourcesDiagnosis& diagnosis, const std::string& job);

}  // namespace taskd::readers
