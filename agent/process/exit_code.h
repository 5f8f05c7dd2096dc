// Exit codes that TaskD's commands answer with.
#pragma once

namespace taskd::process {

inline constexpr int kWrongUsage = 2;  // starting the same again does not change it

}  // namespace taskd::process
