#include "agent/process/run_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"

namespace taskd::process {

void PrintRunLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  WriteToStderr(absl::StrCat("taskd run: ", Printable(text, kShownLineBytes), "\n"));
}

}  // namespace taskd::process
