// The inside of a JSON string, read.
#pragma once

#include <string>
#include <string_view>

namespace taskd {

// Appends what `text`, the inside of a JSON string, stands for. A lone surrogate becomes U+FFFD. False: `text` is not
// the inside of a JSON string; then a part of it may have been appended.
bool AppendJsonUnescaped(std::string_view text, std::string& out);

}  // namespace taskd
