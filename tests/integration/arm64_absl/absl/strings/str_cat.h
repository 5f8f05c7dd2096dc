// See absl/status/statusor.h beside this.
#pragma once

#include <sstream>
#include <string>

namespace absl {

template <typename... Arguments>
std::string StrCat(const Arguments&... arguments) {
  std::ostringstream out;
  (out << ... << arguments);
  return out.str();
}

}  // namespace absl
