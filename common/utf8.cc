#include "common/utf8.h"

namespace taskd {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

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
