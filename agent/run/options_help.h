// What `taskd run --help` prints. At most 90 columns.
#pragma once

namespace taskd::run {

extern const char kRunHelp[];

}  // namespace taskd::run
