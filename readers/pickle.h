// Python's pickle, read without Python: plain data alone. No class, no call, no import is executed, or can be expressed:
// an opcode that would ask for one is refused.
#pragma once

#include <string>
#include <string_view>

#include "readers/value_tree.h"

namespace taskd::readers {

// Whether it begins as one of protocols 2 to 5, which say so, or of 0 or 1, as a dictionary or what a class made.
bool IsPickle(std::string_view begin);

// Protocols 0 to 5. Empty, or what is wrong and where. Where it is cut or too large, the tree has what was built before,
// with the outermost container as its root; where it is refused ("opcode 0x63 is not one of plain data at byte 12"), or
// is none of one value, nothing.
std::string ReadPickle(std::string_view bytes, ValueTree& tree);

}  // namespace taskd::readers
