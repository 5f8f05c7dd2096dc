// What `taskd run` itself says to people: one line on stderr.
#pragma once

#include <string>

namespace taskd::process {

// "taskd run: TEXT", without control characters; line breaks become spaces.
void SayRunLine(std::string text);

}  // namespace taskd::process
