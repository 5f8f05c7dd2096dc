// The one sentence of a verdict.
#pragma once

#include <string>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// Uses all other fields of the verdict.
std::string WriteSentence(const Verdict& verdict, const Layout& layout);

}  // namespace taskd::diagnosis
