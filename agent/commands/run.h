// `taskd run`: torchrun's command line, and the launcher behind it (run/launcher.h).
#pragma once

#include <string>
#include <vector>

namespace taskd::commands {

// `arguments`: everything after `taskd run`, unparsed. The result is the program's exit code. Before the first thread.
int RunRunCommand(const std::vector<std::string>& arguments);

}  // namespace taskd::commands
