// The tokens of a JSON text (RFC 8259, UTF-8), read strictly, one after the other, where they lie.
//
//   JsonScanner scanner(text);
//   const bool read = scanner.Members([&](std::string_view key) { return key == "ranks" ? Ranks() : scanner.Skip(8); });
//   if (!read || !scanner.End()) Complain(scanner.at(), scanner.why());
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace taskd {

// Bytes of the longest number that `text` begins with; 0: it begins with none.
inline size_t JsonNumberLength(std::string_view text) {
  size_t at = 0;
  const auto next_is = [&](char a, char b) { return at < text.size() && (text[at] == a || text[at] == b); };
  const auto take_digits = [&] {
    const size_t begin = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at > begin;
  };
  if (next_is('-', '-')) ++at;
  if (next_is('0', '0')) {
    ++at;
  } else if (!take_digits()) {
    return 0;
  }
  size_t length = at;
  if (next_is('.', '.')) {
    ++at;
    if (!take_digits()) return length;
    length = at;
  }
  if (next_is('e', 'E')) {
    ++at;
    if (next_is('+', '-')) ++at;
    if (take_digits()) length = at;
  }
  return length;
}

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : begin_(text.data()), end_(begin_ + text.size()), next_(begin_) {}

  // Behind what was read last; after a failure, where the text is wrong.
  size_t at() const { return static_cast<size_t>(next_ - begin_); }
  // What is wrong there.
  const std::string& why() const { return why_; }
  // The text is not what who reads it wants, `back` bytes before at(). Returns false, as whatever fails does.
  bool Fail(std::string_view why, size_t back = 0);

  // The next byte that is no white space, which stays; NUL, which begins no token, where there is none.
  char Peek() {
    while (IsSpace(Next())) ++next_;
    return Next();
  }
  // Reads `c`, if it is next.
  bool Take(char c) {
    if (Peek() != c) return false;
    ++next_;
    return true;
  }
  // Nothing but white space is left.
  bool End() {
    Peek();
    return next_ == end_ || Fail("there is more after the end of the document");
  }

  // The next value is a string: its inside, which AppendJsonUnescaped reads if it holds a backslash.
  bool String(std::string_view* inside);
  // The next value is a number.
  bool Number(std::string_view* number) {
    Peek();
    *number = Left().substr(0, JsonNumberLength(Left()));
    if (number->empty()) return Fail("a value is expected here");
    next_ += number->size();
    return true;
  }
  // Reads over a value that is neither array nor object.
  bool SkipScalar();
  // Reads over any value with at most `depth` arrays and objects around one another.
  bool Skip(int depth);

  // The next value is an object: f(key) for each member, in order; f reads its value. `key` is the inside of a string.
  template <typename F>
  bool Members(F&& f) {
    if (!Take('{')) return Fail("an object is expected here");
    if (Take('}')) return true;
    do {
      std::string_view key;
      if (Peek() != '"') return Fail("a key in quotes is expected here");
      if (!String(&key)) return false;
      if (!Take(':')) return Fail("':' is expected here");
      if (!f(key)) return false;
    } while (Take(','));
    return Take('}') || Fail("',' or '}' is expected here");
  }
  // The next value is an array: f() for each element, in order; f reads it.
  template <typename F>
  bool Elements(F&& f) {
    if (!Take('[')) return Fail("an array is expected here");
    if (Take(']')) return true;
    do {
      if (!f()) return false;
    } while (Take(','));
    return Take(']') || Fail("',' or ']' is expected here");
  }

 private:
  static bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

  char Next() const { return next_ < end_ ? *next_ : '\0'; }
  bool Word(std::string_view word);
  bool Escape();

  std::string_view Left() const { return std::string_view(next_, static_cast<size_t>(end_ - next_)); }

  const char* const begin_;
  const char* const end_;
  const char* next_;
  std::string why_;
};

}  // namespace taskd
