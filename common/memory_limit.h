// How much memory this process may hope for.
#pragma once

#include <cstdint>
#include <string>

namespace taskd {

// The least of the machine's memory and the limits of this process's control groups (version 2, or the memory
// controller of version 1) and those above it, as far as they can be seen. `root`: before every path, for tests.
uint64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace taskd
