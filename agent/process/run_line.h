// Messages of `taskd run` itself to its user: one line on stderr.
#pragma once

#include <string>

namespace taskd::process {

// "taskd run: TEXT", without control characters; line breaks become spaces.
void PrintRunLine(std::string text);

}  // namespace taskd::process
