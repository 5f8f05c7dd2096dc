// The one sentence of a verdict.
#pragma once

#include <string>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// `step_ms`: the job's present step. Uses all other fields of the verdict.
std::string WriteSentence(const Verdict& verdict, const Layout& layout, double step_ms);

}  // namespace taskd::diagnosis
