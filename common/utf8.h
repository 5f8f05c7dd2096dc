// UTF-8. A message with a string that is not valid is refused whole by its receiver: what comes from outside (a
// peer's text that is cut, a host's name, a variable, an argument) passes here before it becomes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taskd {

// Bytes of the character at the beginning of `text`. 0: there is none; overlong forms and surrogates are none.
inline size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
    return follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
    return follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// `text` without the part of a character that it ends with.
std::string_view DropSplitCharacter(std::string_view text);

// At most the first `max_bytes` bytes, whole characters.
std::string CutUtf8(std::string_view text, size_t max_bytes);
void CutUtf8(std::string* text, size_t max_bytes);

bool IsUtf8(std::string_view text);

// Columns of a terminal that `text` takes: of East Asian characters and emoji two, of combining marks none. What is no
// UTF-8 takes one a byte.
size_t ColumnsOf(std::string_view text);

// `text` with U+FFFD for each byte that belongs to no character.
std::string ValidUtf8(std::string text);

}  // namespace taskd
