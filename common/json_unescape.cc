#include "common/json_unescape.h"

#include <charconv>
#include <cstring>

namespace taskd {
namespace {

bool ReadHex4(std::string_view text, size_t at, uint32_t& code) {
  if (at + 4 > text.size()) return false;
  const char* begin = text.data() + at;
  return std::from_chars(begin, begin + 4, code, 16).ptr == begin + 4;
}

}  // namespace

void AppendUtf8(uint32_t code, std::string& out) {
  if ((code >= 0xd800 && code < 0xe000) || code > 0x10ffff) code = 0xfffd;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

bool AppendJsonUnescaped(std::string_view text, std::string& out) {
  while (true) {
    const auto* backslash = static_cast<const char*>(memchr(text.data(), '\\', text.size()));
    if (backslash == nullptr) {
      out += text;
      return true;
    }
    const auto at = static_cast<size_t>(backslash - text.data());
    if (at + 1 == text.size()) return false;
    out.append(text.data(), at);
    size_t used = at + 2;
    switch (text[at + 1]) {
      case '"':
      case '\\':
      case '/':
        out += text[at + 1];
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'u': {
        uint32_t code = 0;
        if (!ReadHex4(text, used, code)) return false;
        used += 4;
        uint32_t low = 0;
        if (code >= 0xd800 && code < 0xdc00 && text.substr(used, 2) == "\\u" && ReadHex4(text, used + 2, low) &&
            low >= 0xdc00 && low < 0xe000) {
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
          used += 6;
        }
        AppendUtf8(code, out);
        break;
      }
      default:
        return false;
    }
    text.remove_prefix(used);
  }
}

}  // namespace taskd
