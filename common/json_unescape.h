// The inside of a JSON string, read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace taskd {

// Appends the character; U+FFFD for what is none: surrogates, and what is above U+10FFFF.
void AppendUtf8(uint32_t code, std::string& out);

// Appends what `text`, the inside of a JSON string, stands for. A lone surrogate becomes U+FFFD. False: `text` is not
// the inside of a JSON string; then a part of it may have been appended.
bool AppendJsonUnescaped(std::string_view text, std::string& out);

}  // namespace taskd
