#include "common/printable.h"

#include <algorithm>
#include <cstdint>

#include "common/utf8.h"
#include "fmt/format.h"

namespace taskd {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;  // else one byte that belongs to no character
};

Character Decode(std::string_view text) {
  const size_t bytes = Utf8Length(text);
  if (bytes == 0) return {};
  const auto first = static_cast<uint8_t>(text[0]);
  uint32_t code = bytes == 1 ? first : first & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3f);
  return {code, bytes, true};
}

bool IsHarmless(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;  // C0, DEL, C1
  if (code == 0x061c || (code >= 0x200b && code <= 0x200f))
    return false;                                      // marks of direction, characters without width
  if (code >= 0x2028 && code <= 0x202e) return false;  // ends of lines and paragraphs, overrides of direction
  if (code >= 0x2066 && code <= 0x2069) return false;  // isolates
  return code != 0xfeff;
}

// As all that is in a log line is as a rule.
bool IsPlain(char c) { return c >= 0x20 && c < 0x7f; }

}  // namespace

std::string Printable(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes && std::all_of(text.begin(), text.end(), IsPlain)) return std::string(text);
  std::string shown;
  while (!text.empty()) {
    const Character character = Decode(text);
    std::string escape;
    std::string_view piece = text.substr(0, character.bytes);
    if (!character.valid || !IsHarmless(character.code)) {
      escape = !character.valid         ? fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]))
               : character.code == '\n' ? "\\n"
               : character.code == '\r' ? "\\r"
               : character.code == '\t' ? "\\t"
               : character.code <= 0x7f ? fmt::format("\\x{:02x}", character.code)
                                        : fmt::format("\\u{:04x}", character.code);
      piece = escape;
    }
    if (shown.size() + piece.size() > max_bytes) return shown + "…";
    shown += piece;
    text.remove_prefix(character.bytes);
  }
  return shown;
}

std::string PrintableJson(std::string json) {
  // What is to be escaped is in strings only: a line feed between values is JSON's own.
  const auto stays = [](uint32_t code) { return code < 0x20 || IsHarmless(code); };
  std::string shown;
  size_t taken = 0;
  for (size_t i = 0; i < json.size();) {
    // A job's status is 65 MB of it.
    if (IsPlain(json[i])) {
      ++i;
      continue;
    }
    const Character character = Decode(std::string_view(json).substr(i));
    if (character.valid && !stays(character.code)) {
      shown.append(json, taken, i - taken);
      shown += fmt::format("\\u{:04x}", character.code);
      taken = i + character.bytes;
    }
    i += character.bytes;
  }
  if (taken == 0) return json;
  shown.append(json, taken);
  return shown;
}

}  // namespace taskd
