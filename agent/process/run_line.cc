#include "agent/process/run_line.h"

#include <algorithm>
#include <iostream>

#include "common/printable.h"

namespace taskd::process {

void PrintRunLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::cerr << "taskd run: " << Printable(text, kShownLineBytes) << std::endl;
}

}  // namespace taskd::process
