#include "readers/json_stream.h"

#include <algorithm>

#include "common/json_scanner.h"
#include "common/json_unescape.h"

namespace taskd::readers {
namespace {

// The bytes that end the plain part of a string: quotes, backslashes, control characters.
constexpr std::array<bool, 256> kEndsPlain = [] {
  std::array<bool, 256> ends{};
  for (size_t c = 0; c < 0x20; ++c) ends[c] = true;
  ends['"'] = ends['\\'] = true;
  return ends;
}();

bool IsOfNumber(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }

bool IsNumber(std::string_view text) { return !text.empty() && JsonNumberLength(text) == text.size(); }

}  // namespace

bool JsonStream::Fill() {
  const bool is_first = before_ == 0 && end_ == buffer_.data();
  before_ += static_cast<uint64_t>(end_ - buffer_.data());
  next_ = end_ = buffer_.data();
  size_t got = 0;
  do {  // the source may deliver the first bytes one by one
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
  bool has_escapes = false;
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
      return !has_escapes || Unescape(text);
    } else {
      if (*next_++ != '\\' || !Keep(begin)) return false;
      const int escaped = Next();
      if (escaped == kEnd) return false;
      text_ += static_cast<char>(escaped);
      has_escapes = true;
    }
  }
  return false;
}

bool JsonStream::Unescape(std::string_view& text) {
  unescaped_.clear();
  if (!AppendJsonUnescaped(text, unescaped_)) return false;
  text = unescaped_;
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
  text = text_;  // the number may be the whole text
  return IsNumber(text);
}

bool JsonStream::ReadLiteral(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [this](char c) { return Next() == static_cast<unsigned char>(c); });
}

}  // namespace taskd::readers
