// Reads Python's pickle without Python, restricted to plain data. It cannot express or execute a class, a call or an
// import: an opcode that needs one is refused.
#pragma once

#include <string>
#include <string_view>

#include "readers/value_tree.h"

namespace taskd::readers {

// Whether `begin` looks like a pickle: protocols 2 to 5 state it; 0 and 1 are recognized by a dictionary or a class
// instance.
bool IsPickle(std::string_view begin);

// Reads protocols 0 to 5. Returns an empty string, or the defect and its position. If the pickle is cut, is too large
// or does not end with one value, the tree has the values built so far, with the outermost container as its root. If it
// is refused ("opcode 0x63 is not one of plain data at byte 12"), the root is not set.
std::string ReadPickle(std::string_view bytes, ValueTree& tree);

}  // namespace taskd::readers
