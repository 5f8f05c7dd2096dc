// Variables of a process that is, or will be.
#pragma once

#include <map>
#include <string>

namespace taskd {

using Environment = std::map<std::string, std::string>;

// "" where it is not set.
std::string ValueOf(const Environment& environment, const std::string& name);

Environment OwnEnvironment();

}  // namespace taskd
