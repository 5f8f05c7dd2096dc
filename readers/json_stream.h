// JSON of any length, as calls of a handler, with memory that does not grow with it.
//
// Traces are many gigabytes of short strings, of which few are of interest: what lies in the buffer is handed over where
// it lies. (RapidJSON's SAX takes streams byte by byte, and copies.)
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "readers/byte_source.h"

namespace taskd::readers {

// Tokens, one after the other. A token longer than kMaxToken ends it.
class JsonStream {
 public:
  static constexpr size_t kMaxToken = size_t{16} << 20;
  static constexpr int kEnd = -1;

  // `may_lack_commas`: before a string, as NCCL's RAS writes some lists.
  explicit JsonStream(ByteSource& source, bool may_lack_commas = false)
      : source_(source), may_lack_commas_(may_lack_commas) {}

  // The next byte that is no white space, which stays; kEnd: there is none.
  int Peek();
  void Take() { ++next_; }  // what Peek() has shown
  // Over what is no JSON, up to the next `c`, which stays. False: there is none.
  bool SkipTo(char c);
  // After the quote that begins it: up to and with the one that ends it. Valid until the next call.
  bool ReadString(std::string_view& text);
  bool ReadNumber(std::string_view& text);
  bool ReadLiteral(std::string_view text);  // "true"

  uint64_t position() const { return before_ + static_cast<uint64_t>(next_ - buffer_.data()); }
  // Why no more can be read: neither, it is no JSON.
  bool is_cut() const { return cut_; }
  bool token_is_too_long() const { return too_long_; }
  bool may_lack_commas() const { return may_lack_commas_; }

 private:
  bool Fill();
  int Next() { return next_ < end_ || Fill() ? static_cast<unsigned char>(*next_++) : kEnd; }
  bool Keep(const char* begin);  // in text_, up to next_
  bool Unescape(std::string_view& text);

  ByteSource& source_;
  const bool may_lack_commas_;
  std::array<char, size_t{64} << 10> buffer_;
  const char* next_ = buffer_.data();
  const char* end_ = buffer_.data();
  uint64_t before_ = 0;    // bytes before the buffer
  std::string text_;       // of a token that does not lie in the buffer as it is
  std::string unescaped_;  // of the last string that was written with escapes
  bool cut_ = false, too_long_ = false;
};

// What a handler is derived from. It has Name(text) of a key, Text(text), Number(text) and, where it wants to know of
// them, Other() for true, false and null, Begin(is_array) and End(is_array); false ends.
template <typename Handler>
class JsonHandler {
 public:
  static constexpr size_t kMaxDepth = 256;

  explicit JsonHandler(JsonStream& stream) : stream_(stream) {}

  // Reads a value. False: the stream or the handler ended it.
  bool Read();
  bool Other() { return true; }
  bool Bool(bool) { return self().Other(); }  // for handlers that tell them apart
  bool Begin(bool) { return true; }
  bool End(bool) { return true; }

 protected:
  size_t depth() const { return depth_; }  // of brackets that are open

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
    // A value.
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
    // What follows it: the ends of those around it, then a comma, or the end of all.
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

// Runs `handler` over `source`. Empty, or what is wrong with it and where; what came before has been handed over.
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
