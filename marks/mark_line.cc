#include "marks/mark_line.h"

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

#include "common/utf8.h"

namespace taskd {
namespace {

constexpr std::string_view kKind = R"({"Kind":1,"Flag":)";
constexpr std::string_view kHostSource = R"(,"SourceKind":0,"Timestamp":)";
constexpr std::string_view kDeviceSource = R"(,"SourceKind":1,"Timestamp":)";
constexpr std::string_view kId = R"(,"Id":)";
constexpr std::string_view kPt = R"(,"MsptiObjectId":{"Pt":{"ProcessId":)";
constexpr std::string_view kThread = R"(,"ThreadId":)";
constexpr std::string_view kDs = R"(},"Ds":{"DeviceId":)";
constexpr std::string_view kStream = R"(,"StreamId":)";
constexpr std::string_view kName = R"(}},"Name":")";
constexpr std::string_view kDomain = R"(","Domain":")";
constexpr std::string_view kEnd = "\"}\n";

constexpr std::string_view kReplacement = "\\ufffd";
constexpr char kHex[] = "0123456789abcdef";

// These bytes may stand unescaped in a JSON string, and Go does not escape them. Bytes of 0x80 and above are excluded:
// they need a check of the whole character.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&';
  return plain;
}();

char* AppendUnicode(char* out, uint32_t code) {
  *out++ = '\\';
  *out++ = 'u';
  for (int shift = 12; shift >= 0; shift -= 4) *out++ = kHex[(code >> shift) & 0xf];
  return out;
}

char* Append(char* out, std::string_view text) {
  memcpy(out, text.data(), text.size());
  return out + text.size();
}

char* Append(char* out, uint64_t number) { return std::to_chars(out, out + 20, number).ptr; }

// Appends a multi-byte character, or U+FFFD for an invalid byte. Moves `i` behind it.
char* AppendHighByte(char* out, std::string_view text, size_t& i) {
  size_t length = Utf8Length(text.substr(i));
  if (length == 0) {
    ++i;
    return Append(out, kReplacement);
  }
  if (length == 3 && text[i] == '\xe2' && text[i + 1] == '\x80' && (text[i + 2] == '\xa8' || text[i + 2] == '\xa9')) {
    out = AppendUnicode(out, text[i + 2] == '\xa8' ? 0x2028 : 0x2029);
  } else {
    out = Append(out, text.substr(i, length));
  }
  i += length;
  return out;
}

// Writes at most 6 bytes for each byte of input.
char* AppendEscaped(char* out, std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto byte = static_cast<uint8_t>(text[i]);
    if (kPlain[byte]) {
      *out++ = text[i++];
    } else if (byte >= 0x80) {
      out = AppendHighByte(out, text, i);
    } else {
      ++i;
      switch (byte) {
        case '"':
        case '\\':
          *out++ = '\\';
          *out++ = static_cast<char>(byte);
          break;
        case '\n':
          out = Append(out, "\\n");
          break;
        case '\r':
          out = Append(out, "\\r");
          break;
        case '\t':
          out = Append(out, "\\t");
          break;
        default:
          out = AppendUnicode(out, byte);
      }
    }
  }
  return out;
}

// Returns the value of the four hexadecimal digits at the beginning of `text`.
std::optional<uint32_t> CodeUnit(std::string_view text) {
  text = text.substr(0, 4);
  uint32_t unit = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), unit, 16);
  if (text.size() < 4 || read.ec != std::errc() || read.ptr != text.data() + 4) return std::nullopt;
  return unit;
}

// Returns true if `text` is the inside of a JSON string with escaped quotes: then the sender has escaped it.
bool IsEscapedAlready(std::string_view text) {
  bool quotes = false;
  bool high = false;  // the previous escape is the first half of a surrogate pair
  for (size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<uint8_t>(text[i]);
    if (byte == '"' || byte < 0x20) return false;
    const bool unicode = byte == '\\' && i + 1 < text.size() && text[i + 1] == 'u';
    if (high && !unicode) return false;
    if (byte != '\\') continue;
    if (++i == text.size()) return false;
    if (unicode) {
      const std::optional<uint32_t> unit = CodeUnit(text.substr(i + 1));
      if (!unit || (*unit >= 0xdc00 && *unit <= 0xdfff) != high) return false;
      high = *unit >= 0xd800 && *unit <= 0xdbff;
      i += 4;
    } else if (text[i] == '"') {
      quotes = true;
    } else if (std::string_view("\\/bfnrt").find(text[i]) == std::string_view::npos) {
      return false;
    }
  }
  return quotes && !high;
}

char* AppendSanitized(char* out, std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      *out++ = text[i++];
    } else {
      out = AppendHighByte(out, text, i);
    }
  }
  return out;
}

bool Skip(std::string_view& rest, std::string_view expected) {
  if (rest.substr(0, expected.size()) != expected) return false;
  rest.remove_prefix(expected.size());
  return true;
}

template <typename Number>
bool SkipNumber(std::string_view& rest, Number& number) {
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data()) return false;
  rest.remove_prefix(end - rest.data());
  return true;
}

// Skips to the quote that ends a JSON string.
bool SkipString(std::string_view& rest, std::string_view& text) {
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '\\') {
      ++i;
    } else if (rest[i] == '"') {
      text = rest.substr(0, i);
      rest.remove_prefix(i);
      return true;
    }
  }
  return false;
}

}  // namespace

void AppendMarkLine(const MarkLine& mark, std::string& out) {
  std::string_view name = mark.cut ? DropSplitCharacter(mark.name) : mark.name;
  // The constants and seven numbers take less than 320 bytes.
  const size_t old_size = out.size();
  out.resize(old_size + 320 + 6 * (name.size() + mark.domain.size()));
  char* const begin = out.data();
  char* p = begin + old_size;
  p = Append(p, kKind);
  p = Append(p, mark.flag);
  p = Append(p, mark.device ? kDeviceSource : kHostSource);
  p = Append(p, mark.timestamp_ns);
  p = Append(p, kId);
  p = Append(p, mark.id);
  p = Append(p, kPt);
  char* const process = p;
  p = Append(p, mark.process_id);
  const std::string_view process_text(process, p - process);
  p = Append(p, kThread);
  char* const thread = p;
  p = Append(p, mark.thread_id);
  const std::string_view thread_text(thread, p - thread);
  p = Append(p, kDs);
  p = Append(p, process_text);
  p = Append(p, kStream);
  p = Append(p, thread_text);
  p = Append(p, kName);
  p = mark.domain == "communication" && IsEscapedAlready(name) ? AppendSanitized(p, name) : AppendEscaped(p, name);
  p = Append(p, kDomain);
  p = AppendEscaped(p, mark.domain);
  p = Append(p, kEnd);
  out.resize(p - begin);
}

std::optional<MarkLine> ParseMarkLine(std::string_view line) {
  MarkLine mark;
  uint32_t device = 0;
  uint32_t stream = 0;
  std::string_view rest = line;
  if (!Skip(rest, kKind) || !SkipNumber(rest, mark.flag)) return std::nullopt;
  mark.device = Skip(rest, kDeviceSource);
  if ((mark.device || Skip(rest, kHostSource)) && SkipNumber(rest, mark.timestamp_ns) && Skip(rest, kId) &&
      SkipNumber(rest, mark.id) && Skip(rest, kPt) && SkipNumber(rest, mark.process_id) && Skip(rest, kThread) &&
      SkipNumber(rest, mark.thread_id) && Skip(rest, kDs) && SkipNumber(rest, device) && Skip(rest, kStream) &&
      SkipNumber(rest, stream) && Skip(rest, kName) && SkipString(rest, mark.name) && Skip(rest, kDomain) &&
      SkipString(rest, mark.domain) && rest == "\"}") {
    return mark;
  }
  return std::nullopt;
}

}  // namespace taskd
