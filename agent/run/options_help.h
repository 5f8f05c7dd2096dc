// What `taskd run --help` prints. At most 90 columns.
#pragma once

namespace taskd {

extern const char kRunHelp[];

}  // namespace taskd
