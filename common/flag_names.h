// How messages name the flags of this process. The user of `taskd run` has not written the command lines of the daemons that
// it starts: to that user a flag is the variable, or the option of `taskd run`, that gave its value.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace taskd {

// From now on the log and NamedFlags() write the second of a pair for the first: {"--state-dir", "TASKD_STATE_DIR"}. Before there
// are threads.
void SetFlagNames(std::map<std::string, std::string> names);

// The text with those names. A flag counts as a whole word: "--http" is none in "--http-host".
std::string NamedFlags(std::string_view text);

}  // namespace taskd
