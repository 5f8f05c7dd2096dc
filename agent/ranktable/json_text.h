// JSON whose bytes matter: checked once, then read by position, so that a rewrite can keep what it does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/input_budget.h"

namespace taskd::ranktable {

// Bounds of what strangers may hand us. Time and memory of everything below are linear in the text.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonMembers = 65536;  // of one object

// A value's place in its text: from its first byte to behind its last.
struct JsonSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// OK: `text` is one JSON value (RFC 8259) in UTF-8 within the bounds, and no object has a key twice (readers differ in
// which of the two they take). INVALID_ARGUMENT: what is wrong, at which line and byte of the line. RESOURCE_EXHAUSTED:
// the text and what a reader makes of its values are more than `max_bytes` (input_budget.h).
absl::Status CheckJsonText(std::string_view text, size_t max_bytes = kDefaultInputBytes);

// Walks through a text that CheckJsonText has accepted; of any other the behaviour is undefined.
class JsonReader {
 public:
  // Strings with escapes are put into `decoded`; both arguments outlive what is read.
  JsonReader(std::string_view text, std::deque<std::string>* decoded) : text_(text), decoded_(decoded) {}

  void Seek(uint32_t at) { at_ = at; }
  // Behind what was read last.
  uint32_t at() const { return at_; }
  // Where the next value begins.
  uint32_t Begin();
  // Its first byte, which gives its type: { [ " t f n, else a number.
  char First() { return text_[Begin()]; }
  // Reads over the next value.
  JsonSpan Skip();
  // The next value, which is a string: what it stands for.
  std::string_view ReadString();

  // The next value is an object: f(key) for each member, in order. What f does not read is skipped. A key is valid
  // until f reads on.
  template <typename F>
  void ForEachMember(F&& f) {
    ++(at_ = Begin());
    for (bool more = text_[Begin()] != '}'; more; more = NextItem()) {
      const std::string_view key = ReadKey();
      at_ = Begin() + 1;  // behind the colon
      const uint32_t value = Begin();
      f(key);
      if (at_ <= value) Skip();
    }
    at_ = Begin() + 1;
  }

  // The next value is an array: f() for each element, in order. What f does not read is skipped.
  template <typename F>
  void ForEachElement(F&& f) {
    ++(at_ = Begin());
    for (bool more = text_[Begin()] != ']'; more; more = NextItem()) {
      const uint32_t value = Begin();
      f();
      if (at_ <= value) Skip();
    }
    at_ = Begin() + 1;
  }

 private:
  // Reads a comma, if one is next.
  bool NextItem() {
    if (text_[Begin()] != ',') return false;
    ++at_;
    return true;
  }
  void SkipString();
  std::string_view ReadKey();

  std::string_view text_;
  std::deque<std::string>* decoded_;
  std::string key_;  // the last one that was written with escapes
  uint32_t at_ = 0;
};

// Where in the document the values are that begin at these bytes: "server_list[1].device[0].rank_id", "" for the whole
// document, and "" for what is no value's first byte. One pass over `text`, which CheckJsonText has accepted.
std::vector<std::string> JsonPathsAt(std::string_view text, const std::vector<uint32_t>& begins);

}  // namespace taskd::ranktable
