#include "readers/value_tree.h"

#include <charconv>
#include <system_error>

namespace taskd::readers {

ValueTree::Id ValueTree::Add(Kind kind, int64_t number) {
  if (is_full()) return Nothing();
  Node node{kind, number};
  if (kind == Kind::kList || kind == Kind::kMap) {
    node.number = static_cast<int64_t>(lists_.size());
    lists_.emplace_back();
  }
  nodes_.push_back(node);
  return static_cast<Id>(nodes_.size() - 1);
}

ValueTree::Id ValueTree::AddText(std::string_view text) {
  if (is_full()) return Nothing();
  if (text.size() > kMaxTextBytes) return Nothing();
  texts_.emplace_back(static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(text.size()));
  text_.append(text);
  nodes_.push_back({Kind::kText, static_cast<int64_t>(texts_.size() - 1)});
  return static_cast<Id>(nodes_.size() - 1);
}

ValueTree::Id ValueTree::AddNumber(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? Add(Kind::kNumber, number) : Add(Kind::kReal);
}

int64_t ValueTree::number(Id id) const {
  if (kind(id) == Kind::kNumber) return nodes_[id].number;
  int64_t number = -1;
  const std::string_view digits = text(id);
  const char* end = digits.data() + digits.size();
  return std::from_chars(digits.data(), end, number) == std::from_chars_result{end, std::errc()} ? number : -1;
}

std::string_view ValueTree::text(Id id) const {
  if (kind(id) != Kind::kText) return {};
  const auto [begin, length] = texts_[Index(id)];
  return std::string_view(text_).substr(begin, length);
}

const std::vector<ValueTree::Id>& ValueTree::items(Id id) const {
  static const std::vector<Id> kNothing;
  return kind(id) == Kind::kList || kind(id) == Kind::kMap ? lists_[Index(id)] : kNothing;
}

ValueTree::Id ValueTree::Find(Id map, std::string_view key) const {
  if (kind(map) != Kind::kMap) return Nothing();
  const std::vector<Id>& entries = items(map);
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (kind(entries[i]) == Kind::kText && text(entries[i]) == key) return entries[i + 1];
  }
  return Nothing();
}

}  // namespace taskd::readers
