#include "readers/json_stream.h"

#include <algorithm>

namespace taskd::readers {
namespace {

// Bytes that end the plain part of a string: quotes, backslashes, control characters.
constexpr std::array<bool, 256> kEndsPlain = [] {
  std::array<bool, 256> ends{};
  for (size_t c = 0; c < 0x20; ++c) ends[c] = true;
  ends['"'] = ends['\\'] = true;
  return ends;
}();

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

bool IsOfNumber(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }

bool TakeDigits(std::string_view& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  text.remove_prefix(digits);
  return digits > 0;
}

bool IsNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool begins_with_zero = text.starts_with('0');
  const size_t before = text.size();
  if (!TakeDigits(text) || (begins_with_zero && before - text.size() > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!TakeDigits(text)) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (!TakeDigits(text)) return false;
  }
  return text.empty();
}

void AppendUtf8(uint32_t code, std::string& text) {
  const auto add = [&text](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

}  // namespace

bool JsonStream::Fill() {
  const bool is_first = before_ == 0 && end_ == buffer_.data();
  before_ += static_cast<uint64_t>(end_ - buffer_.data());
  next_ = end_ = buffer_.data();
  size_t got = 0;
  do {  // the first bytes may come one by one
    got = source_.Read(buffer_.data() + (end_ - next_), buffer_.size() - static_cast<size_t>(end_ - next_));
    end_ += got;
  } while (is_first && got > 0 && end_ - next_ < 3);
  if (is_first && std::string_view(next_, static_cast<size_t>(end_ - next_)).starts_with("\xef\xbb\xbf")) next_ += 3;
  cut_ = next_ == end_;
  return !cut_;
}

int JsonStream::Peek() {
  while (next_ < end_ || Fill()) {
    const char c = *next_;
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return static_cast<unsigned char>(c);
    ++next_;
  }
  return kEnd;
}

bool JsonStream::SkipTo(char c) {
  while (next_ < end_ || Fill()) {
    next_ = std::find(next_, end_, c);
    if (next_ < end_) return true;
  }
  return false;
}

bool JsonStream::Keep(const char* begin) {
  text_.append(begin, next_);
  too_long_ = text_.size() > kMaxToken;
  return !too_long_;
}

bool JsonStream::ReadString(std::string_view& text) {
  text_.clear();
  while (next_ < end_ || Fill()) {
    const char* const begin = next_;
    while (next_ < end_ && !kEndsPlain[static_cast<unsigned char>(*next_)]) ++next_;
    if (next_ == end_) {
      if (!Keep(begin)) return false;
    } else if (*next_ == '"') {
      text = std::string_view(begin, static_cast<size_t>(next_ - begin));
      if (!text_.empty()) {
        if (!Keep(begin)) return false;
        text = text_;
      }
      ++next_;
      return true;
    } else {
      if (*next_ != '\\' || !Keep(begin)) return false;
      ++next_;
      if (!ReadEscape()) return false;
    }
  }
  return false;
}

bool JsonStream::ReadEscape() {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  const int c = Next();
  if (const size_t known = c == kEnd ? std::string_view::npos : kLetters.find(static_cast<char>(c));
      known != std::string_view::npos) {
    text_ += kMeant[known];
    return true;
  }
  uint32_t unit = 0;
  if (c != 'u' || !ReadHex(unit)) return false;
  const bool is_high = unit >= 0xd800 && unit <= 0xdbff, is_low = unit >= 0xdc00 && unit <= 0xdfff;
  if (is_low && high_ != 0 && high_end_ == text_.size()) {
    text_.resize(text_.size() - kReplacement.size());
    unit = 0x10000 + ((high_ - 0xd800) << 10) + (unit - 0xdc00);
    AppendUtf8(unit, text_);
  } else if (is_high || is_low) {  // a half by itself is no character
    text_ += kReplacement;
  } else {
    AppendUtf8(unit, text_);
  }
  high_ = is_high ? unit : 0;
  high_end_ = text_.size();
  return true;
}

bool JsonStream::ReadHex(uint32_t& unit) {
  for (int i = 0; i < 4; ++i) {
    const int c = Next();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return false;
    unit = unit << 4 | static_cast<uint32_t>(digit);
  }
  return true;
}

bool JsonStream::ReadNumber(std::string_view& text) {
  text_.clear();
  while (next_ < end_ || Fill()) {
    const char* const begin = next_;
    while (next_ < end_ && IsOfNumber(*next_)) ++next_;
    if (next_ < end_) {
      text = std::string_view(begin, static_cast<size_t>(next_ - begin));
      if (!text_.empty()) {
        if (!Keep(begin)) return false;
        text = text_;
      }
      return IsNumber(text);
    }
    if (!Keep(begin)) return false;
  }
  text = text_;  // it may be all that there is
  return IsNumber(text);
}

bool JsonStream::ReadLiteral(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [this](char c) { return Next() == static_cast<unsigned char>(c); });
}

}  // namespace taskd::readers
