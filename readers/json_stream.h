// JSON of any length, as calls of a handler (RapidJSON's SAX), with memory that does not grow with it.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "rapidjson/error/en.h"
#include "rapidjson/reader.h"
#include "readers/byte_source.h"

namespace taskd::readers {

// As RapidJSON wants its input. A token (a string, a number, white space) longer than kMaxToken ends it.
class JsonStream {
 public:
  using Ch = char;
  static constexpr size_t kMaxToken = size_t{16} << 20;

  explicit JsonStream(ByteSource& source) : source_(source) {}

  Ch Peek() { return next_ < end_ || Fill() ? *next_ : '\0'; }
  Ch Take() { return next_ < end_ || Fill() ? *next_++ : '\0'; }
  size_t Tell() const { return before_ + static_cast<size_t>(next_ - buffer_.data()); }
  // Only for writing, which nobody does.
  Ch* PutBegin() { return nullptr; }
  void Put(Ch) {}
  void Flush() {}
  size_t PutEnd(Ch*) { return 0; }

  void BeginToken() { fills_ = 0; }
  bool token_is_too_long() const { return too_long_; }

 private:
  bool Fill() {
    if (too_long_ || fills_++ > kMaxToken / sizeof(buffer_)) {
      too_long_ = true;
      return false;
    }
    before_ += static_cast<size_t>(end_ - buffer_.data());
    next_ = end_ = buffer_.data();
    end_ += source_.Read(buffer_.data(), buffer_.size());
    return next_ < end_;
  }

  ByteSource& source_;
  std::array<char, size_t{64} << 10> buffer_;
  const char* next_ = buffer_.data();
  const char* end_ = buffer_.data();
  size_t before_ = 0;  // bytes before the buffer
  size_t fills_ = 0;   // since the last token
  bool too_long_ = false;
};

// What a handler (RapidJSON's concept, numbers as texts) is derived from: it sees to depth and tokens. A handler has
// Name(text) of a key, Text(text), Number(text), Other() for true, false and null, Begin(is_array) and End(is_array); false ends.
template <typename Handler>
class JsonHandler {
 public:
  static constexpr size_t kMaxDepth = 256;

  explicit JsonHandler(JsonStream& stream) : stream_(stream) {}

  bool Null() { return Token() && self().Other(); }
  bool Bool(bool) { return Token() && self().Other(); }
  bool Int(int) { return false; }  // numbers come as texts
  bool Uint(unsigned) { return false; }
  bool Int64(int64_t) { return false; }
  bool Uint64(uint64_t) { return false; }
  bool Double(double) { return false; }
  bool RawNumber(const char* text, rapidjson::SizeType length, bool) {
    return Token() && self().Number(std::string_view(text, length));
  }
  bool String(const char* text, rapidjson::SizeType length, bool) {
    return Token() && self().Text(std::string_view(text, length));
  }
  bool Key(const char* text, rapidjson::SizeType length, bool) {
    return Token() && self().Name(std::string_view(text, length));
  }
  bool StartObject() { return Open() && self().Begin(false); }
  bool StartArray() { return Open() && self().Begin(true); }
  bool EndObject(rapidjson::SizeType) { return Close() && self().End(false); }
  bool EndArray(rapidjson::SizeType) { return Close() && self().End(true); }

 protected:
  size_t depth() const { return depth_; }  // of brackets that are open

 private:
  Handler& self() { return static_cast<Handler&>(*this); }
  bool Token() {
    stream_.BeginToken();
    return true;
  }
  bool Open() {
    stream_.BeginToken();
    return ++depth_ <= kMaxDepth;
  }
  bool Close() {
    stream_.BeginToken();
    --depth_;
    return true;
  }

  JsonStream& stream_;
  size_t depth_ = 0;
};

// Runs `handler` over `source`. Empty, or what is wrong with it and where; what came before has been handed over.
template <typename Stream, typename Handler>
std::string ReadJson(ByteSource& source, Stream& stream, Handler& handler) {
  rapidjson::Reader reader;
  constexpr unsigned kFlags =
      rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseStopWhenDoneFlag;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, handler);
  if (!source.damage().empty()) return source.damage();
  if (!result.IsError()) return "";
  const std::string where = " at byte " + std::to_string(result.Offset());
  if (stream.token_is_too_long()) return "a string of more than 16 MiB" + where;
  if (stream.Peek() == '\0' && result.Code() != rapidjson::kParseErrorTermination) return "it is cut" + where;
  return "it is damaged" + where;
}

}  // namespace taskd::readers
