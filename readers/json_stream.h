// Parses JSON of any length with calls of a handler and constant memory.
//
// Traces are many gigabytes of short strings, and few of these matter. So tokens are passed as views into the buffer.
// (RapidJSON's SAX takes streams byte by byte, and copies.)
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "readers/byte_source.h"

namespace taskd::readers {

// Reads tokens, one after the other. A token longer than kMaxToken ends the stream.
class JsonStream {
 public:
  static constexpr size_t kMaxToken = size_t{16} << 20;
  static constexpr int kEnd = -1;

  // `may_lack_commas`: commas before a string are optional, as in some lists of NCCL's RAS.
  explicit JsonStream(ByteSource& source, bool may_lack_commas = false)
      : source_(source), may_lack_commas_(may_lack_commas) {}

  // Returns the next byte that is not white space, without consuming it; kEnd at the end.
  int Peek();
  void Take() { ++next_; }  // consumes the byte from Peek()
  // Skips text up to the next `c`, without consuming it. Returns false if there is none.
  bool SkipTo(char c);
  // Reads the rest of a string after its opening quote, with the closing quote. The text is valid until the next call.
  bool ReadString(std::string_view& text);
  bool ReadNumber(std::string_view& text);
  bool ReadLiteral(std::string_view text);  // consumes `text`, e.g. "true"

  uint64_t position() const { return before_ + static_cast<uint64_t>(next_ - buffer_.data()); }
  // The reason why reading ended. Both are false: the text is not JSON.
  bool is_cut() const { return cut_; }
  bool token_is_too_long() const { return too_long_; }
  bool may_lack_commas() const { return may_lack_commas_; }

 private:
  bool Fill();
  int Next() { return next_ < end_ || Fill() ? static_cast<unsigned char>(*next_++) : kEnd; }
  bool Keep(const char* begin);  // copies the bytes up to next_ to text_
  bool Unescape(std::string_view& text);

  ByteSource& source_;
  const bool may_lack_commas_;
  std::array<char, size_t{64} << 10> buffer_;
  const char* next_ = buffer_.data();
  const char* end_ = buffer_.data();
  uint64_t before_ = 0;    // bytes before the buffer
  std::string text_;       // a token that the buffer does not hold contiguously
  std::string unescaped_;  // the last string with escapes
  bool cut_ = false, too_long_ = false;
};

// Base class of handlers. A handler has Name(text) for a key, Text(text) and Number(text). Optional are Other() for
// true, false and null, Begin(is_array) and End(is_array). A call that returns false ends the reading.
template <typename Handler>
class JsonHandler {
 public:
  static constexpr size_t kMaxDepth = 256;

  explicit JsonHandler(JsonStream& stream) : stream_(stream) {}

  // Reads a value. Returns false if the stream or the handler ended it.
  bool Read();
  bool Other() { return true; }
  bool Bool(bool) { return self().Other(); }  // for handlers that distinguish true and false
  bool Begin(bool) { return true; }
  bool End(bool) { return true; }

 protected:
  size_t depth() const { return depth_; }  // number of open brackets

 private:
  Handler& self() { return static_cast<Handler&>(*this); }
  bool Open(bool is_array);
  bool Close();
  bool ReadScalar(int first);
  bool ReadName();

  JsonStream& stream_;
  size_t depth_ = 0;
  std::bitset<kMaxDepth + 1> is_array_;  // by depth
};

template <typename Handler>
bool JsonHandler<Handler>::Open(bool is_array) {
  if (depth_ == kMaxDepth) return false;
  is_array_[++depth_] = is_array;
  return self().Begin(is_array);
}

template <typename Handler>
bool JsonHandler<Handler>::Close() {
  const bool is_array = is_array_[depth_--];
  return self().End(is_array);
}

template <typename Handler>
bool JsonHandler<Handler>::ReadScalar(int first) {
  std::string_view text;
  switch (first) {
    case '"':
      stream_.Take();
      return stream_.ReadString(text) && self().Text(text);
    case 't':
      return stream_.ReadLiteral("true") && self().Bool(true);
    case 'f':
      return stream_.ReadLiteral("false") && self().Bool(false);
    case 'n':
      return stream_.ReadLiteral("null") && self().Other();
    default:
      return stream_.ReadNumber(text) && self().Number(text);
  }
}

template <typename Handler>
bool JsonHandler<Handler>::ReadName() {
  std::string_view name;
  if (stream_.Peek() != '"') return false;
  stream_.Take();
  if (!stream_.ReadString(name) || !self().Name(name) || stream_.Peek() != ':') return false;
  stream_.Take();
  return true;
}

template <typename Handler>
bool JsonHandler<Handler>::Read() {
  do {
    int c = stream_.Peek();
    bool is_open = false;
    if (c == '{' || c == '[') {
      stream_.Take();
      if (!Open(c == '[')) return false;
      const int end = c == '[' ? ']' : '}';
      is_open = stream_.Peek() != end;
    } else if (!ReadScalar(c)) {
      return false;
    }
    // Consumes the brackets that end after the value, then a comma, unless the text ends.
    while (!is_open && depth_ > 0) {
      c = stream_.Peek();
      is_open = c == ',' || (c == '"' && stream_.may_lack_commas());
      if (!is_open && c != (is_array_[depth_] ? ']' : '}')) return false;
      if (c != '"') stream_.Take();
      if (!is_open && !Close()) return false;
    }
    if (depth_ > 0 && !is_array_[depth_] && !ReadName()) return false;
  } while (depth_ > 0);
  return true;
}

// Runs `handler` over `source`. Returns an empty string, or the defect and its position; the data before it has been
// handed over.
template <typename Handler>
std::string ReadJson(ByteSource& source, JsonStream& stream, Handler& handler) {
  if (handler.Read()) return "";
  if (!source.damage().empty()) return source.damage();
  return (stream.token_is_too_long() ? "a string of more than 16 MiB at byte "
          : stream.is_cut()          ? "it is cut at byte "
                                     : "it is damaged at byte ") +
         std::to_string(stream.position());
}

}  // namespace taskd::readers
