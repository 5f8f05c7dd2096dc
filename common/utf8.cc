#include "common/utf8.h"

#include <algorithm>
#include <array>
#include <utility>

namespace taskd {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Unicode's wide and full-width blocks.
constexpr std::array<std::pair<char32_t, char32_t>, 8> kWide = {{{0x1100, 0x115f},
                                                                 {0x2e80, 0xa4cf},
                                                                 {0xac00, 0xd7a3},
                                                                 {0xf900, 0xfaff},
                                                                 {0xfe30, 0xfe6f},
                                                                 {0xff00, 0xff60},
                                                                 {0x1f300, 0x1faff},
                                                                 {0x20000, 0x3fffd}}};

size_t ValidBytes(std::string_view text, size_t from) {
  for (size_t length = 0; from < text.size(); from += length) {
    length = Utf8Length(text.substr(from));
    if (length == 0) break;
  }
  return from;
}

}  // namespace

std::string_view DropSplitCharacter(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t whole = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return whole > back ? text.substr(0, text.size() - back) : text;
  }
  return text;
}

std::string CutUtf8(std::string_view text, size_t max_bytes) {
  return std::string(text.size() <= max_bytes ? text : DropSplitCharacter(text.substr(0, max_bytes)));
}

void CutUtf8(std::string* text, size_t max_bytes) {
  if (text->size() > max_bytes) text->resize(DropSplitCharacter({text->data(), max_bytes}).size());
}

bool IsUtf8(std::string_view text) { return ValidBytes(text, 0) == text.size(); }

size_t ColumnsOf(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(Utf8Length(text.substr(at)), 1);
    char32_t character = static_cast<uint8_t>(text[at]) & (length == 1 ? 0xff : 0x7f >> length);
    for (size_t i = 1; i < length; ++i) character = character << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3f);
    const bool is_wide = std::any_of(kWide.begin(), kWide.end(), [&](const auto& range) {
      return length > 1 && range.first <= character && character <= range.second;
    });
    const bool combines = character >= 0x300 && character <= 0x36f;
    columns += combines ? 0 : is_wide ? 2 : 1;
    at += length;
  }
  return columns;
}

std::string ValidUtf8(std::string text) {
  size_t valid = ValidBytes(text, 0);
  if (valid == text.size()) return text;
  std::string result;
  for (size_t taken = 0; taken < text.size(); valid = ValidBytes(text, taken)) {
    result.append(text, taken, valid - taken);
    if (valid < text.size()) result += kReplacement;
    taken = valid + 1;
  }
  return result;
}

}  // namespace taskd
