#include "agent/ranktable/json_text.h"

#include <algorithm>
#include <cstring>

#include "agent/ranktable/rank_table.h"
#include "common/json_scanner.h"
#include "common/json_unescape.h"
#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

// What a value costs who reads it: its place, or a rank, a server or a level of a table, in a list that has doubled.
constexpr size_t kValueBytes = 16;
constexpr size_t kObjectBytes = 144;
static_assert(kValueBytes + kObjectBytes >= 2 * sizeof(RankTableServer));
static_assert(kValueBytes + kObjectBytes >= 2 * sizeof(RankTableDevice));

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

class Checker {
 public:
  Checker(std::string_view text, size_t max_bytes) : text_(text), scanner_(text), budget_(max_bytes) {}

  absl::Status Check() {
    if (budget_.Take(text_.size()) && Value(0) && scanner_.End()) return absl::OkStatus();
    return budget_.status().ok() ? Error() : budget_.status();
  }

 private:
  absl::Status Error() const {
    const std::string_view before = text_.substr(0, scanner_.at());
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    return absl::InvalidArgumentError(
        fmt::format("is not valid JSON: line {}, byte {}: {}", line, before.size() - line_begin + 1, scanner_.why()));
  }

  bool Value(int depth) {
    if (!budget_.Take(kValueBytes)) return false;
    const char first = scanner_.Peek();
    if (first != '{' && first != '[') return scanner_.SkipScalar();
    if (depth == kMaxJsonDepth) return scanner_.Fail("nested too deeply");
    return first == '{' ? Object(depth + 1) : scanner_.Elements([&] { return Value(depth + 1); });
  }

  bool Object(int depth) {
    if (!budget_.Take(kObjectBytes)) return false;
    const size_t first_key = keys_.size();
    const size_t first_decoded = decoded_.size();
    const bool read = scanner_.Members([&](std::string_view inside) {
      if (keys_.size() - first_key >= kMaxJsonMembers) return scanner_.Fail("too many members in one object");
      if (keys_.size() == most_keys_) {
        if (!budget_.Take(sizeof(std::string_view))) return false;
        ++most_keys_;
      }
      keys_.push_back(Key(inside));
      return Value(depth);
    });
    if (!read) return false;
    if (HasTwice(first_key)) return scanner_.Fail("the object that ends here has a key twice", 1);
    keys_.resize(first_key);
    decoded_.resize(first_decoded);
    return true;
  }

  std::string_view Key(std::string_view inside) {
    if (inside.find('\\') == inside.npos) return inside;
    budget_.Take(sizeof(std::string) + inside.size());
    AppendJsonUnescaped(inside, decoded_.emplace_back());
    return decoded_.back();
  }

  bool HasTwice(size_t first_key) {
    const auto begin = keys_.begin() + static_cast<ptrdiff_t>(first_key);
    std::sort(begin, keys_.end());
    return std::adjacent_find(begin, keys_.end()) != keys_.end();
  }

  std::string_view text_;
  JsonScanner scanner_;
  InputBudget budget_;
  std::vector<std::string_view> keys_;  // of the objects that are open, outermost first
  size_t most_keys_ = 0;                // that these were at one time: they are counted once
  std::deque<std::string> decoded_;     // keys among them that were written with escapes
};

class PathFinder {
 public:
  PathFinder(std::string_view text, const std::vector<uint32_t>& begins)
      : reader_(text, &decoded_), begins_(begins), paths_(begins.size()), order_(begins.size()) {
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return begins[a] < begins[b]; });
  }

  std::vector<std::string> Find() {
    Walk();
    return std::move(paths_);
  }

 private:
  void Walk() {
    const uint32_t begin = reader_.Begin();
    while (next_ < order_.size() && begins_[order_[next_]] <= begin) {
      if (begins_[order_[next_]] == begin) paths_[order_[next_]] = path_;
      ++next_;
    }
    if (next_ == order_.size()) return;  // what is left is skipped
    const size_t length = path_.size();
    if (reader_.First() == '{') {
      reader_.ForEachMember([&](std::string_view key) {
        path_ += fmt::format("{}{}", path_.empty() ? "" : ".", key);
        Walk();
        path_.resize(length);
      });
    } else if (reader_.First() == '[') {
      size_t index = 0;
      reader_.ForEachElement([&] {
        path_ += fmt::format("[{}]", index++);
        Walk();
        path_.resize(length);
      });
    }
  }

  std::deque<std::string> decoded_;
  JsonReader reader_;
  const std::vector<uint32_t>& begins_;
  std::vector<std::string> paths_;
  std::vector<size_t> order_;  // of begins_, by place
  size_t next_ = 0;            // in order_
  std::string path_;
};

}  // namespace

absl::Status CheckJsonText(std::string_view text, size_t max_bytes) { return Checker(text, max_bytes).Check(); }

uint32_t JsonReader::Begin() {
  while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  return at_;
}

void JsonReader::SkipString() {
  for (++at_; text_[at_] != '"'; ++at_) {
    if (text_[at_] == '\\') ++at_;
  }
  ++at_;
}

JsonSpan JsonReader::Skip() {
  JsonSpan span;
  span.begin = Begin();
  int open = 0;
  do {
    const char c = text_[at_];
    if (c == '"') {
      SkipString();
    } else if (open == 0 && c != '{' && c != '[') {
      while (at_ < text_.size() && strchr(",]} \n\r\t", text_[at_]) == nullptr) ++at_;
    } else {
      if (c == '{' || c == '[') ++open;
      if (c == '}' || c == ']') --open;
      ++at_;
    }
  } while (open > 0);
  span.end = at_;
  return span;
}

std::string_view JsonReader::ReadString() {
  const uint32_t begin = Begin() + 1;
  SkipString();
  const std::string_view inside = text_.substr(begin, at_ - 1 - begin);
  if (inside.find('\\') == inside.npos) return inside;
  AppendJsonUnescaped(inside, decoded_->emplace_back());
  return decoded_->back();
}

std::string_view JsonReader::ReadKey() {
  const uint32_t begin = Begin() + 1;
  SkipString();
  const std::string_view inside = text_.substr(begin, at_ - 1 - begin);
  if (inside.find('\\') == inside.npos) return inside;
  key_.clear();
  AppendJsonUnescaped(inside, key_);
  return key_;
}

std::vector<std::string> JsonPathsAt(std::string_view text, const std::vector<uint32_t>& begins) {
  return PathFinder(text, begins).Find();
}

}  // namespace taskd::ranktable
