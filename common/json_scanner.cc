#include "common/json_scanner.h"

#include "common/utf8.h"

namespace taskd {

bool JsonScanner::Fail(std::string_view why, size_t back) {
  next_ -= back;
  why_ = why;
  return false;
}

bool JsonScanner::Word(std::string_view word) {
  if (!Left().starts_with(word)) return Fail("a value is expected here");
  next_ += word.size();
  return true;
}

bool JsonScanner::String(std::string_view* inside) {
  if (!Take('"')) return Fail("a string is expected here");
  const char* const begin = next_;
  while (next_ < end_) {
    const auto c = static_cast<unsigned char>(*next_);
    if (c == '"') {
      *inside = std::string_view(begin, static_cast<size_t>(next_ - begin));
      ++next_;
      return true;
    }
    if (c == '\\') {
      if (!Escape()) return false;
    } else if (c < 0x20) {
      return Fail("a control character inside a string");
    } else if (c < 0x80) {
      ++next_;
    } else {
      const size_t length = Utf8Length(Left());
      if (length == 0) return Fail("bytes that are not UTF-8");
      next_ += length;
    }
  }
  return Fail("the text ends inside a string");
}

bool JsonScanner::Escape() {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const char c = end_ - next_ > 1 ? next_[1] : '\0';
  if (c == 'u') {
    const std::string_view digits = Left().substr(2, 4);
    if (digits.size() != 4 || digits.find_first_not_of(kHex) != digits.npos) {
      return Fail("\\u without four hexadecimal digits");
    }
    next_ += 6;
    return true;
  }
  if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) {
    return Fail("an escape that JSON does not know");
  }
  next_ += 2;
  return true;
}

bool JsonScanner::SkipScalar() {
  std::string_view text;
  switch (Peek()) {
    case '"':
      return String(&text);
    case 't':
      return Word("true");
    case 'f':
      return Word("false");
    case 'n':
      return Word("null");
    default:
      return Number(&text);
  }
}

bool JsonScanner::Skip(int depth) {
  const char first = Peek();
  if (first != '{' && first != '[') return SkipScalar();
  if (depth == 0) return Fail("nested too deeply");
  if (first == '{') return Members([&](std::string_view) { return Skip(depth - 1); });
  return Elements([&] { return Skip(depth - 1); });
}

}  // namespace taskd
