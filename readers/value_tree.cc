#include "readers/value_tree.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <system_error>

namespace taskd::readers {
namespace {

constexpr size_t kMaxDigits = 20;  // digits of a number of 64 bits, with its sign

}  // namespace

void ValueTree::Clear() {
  nodes_.resize(1);
  text_.clear();
  lists_.clear();
  items_.clear();
  root_ = Nothing();
}

ValueTree::Id ValueTree::Add(Kind kind, int64_t number) {
  if (is_full()) return Nothing();
  if (kind == Kind::kList || kind == Kind::kMap) {
    number = static_cast<int64_t>(lists_.size());
    lists_.emplace_back();
  }
  nodes_.push_back({.kind = kind, .size = 0, .number = number});
  return static_cast<Id>(nodes_.size() - 1);
}

ValueTree::Id ValueTree::AddText(std::string_view text) {
  if (is_full() || text.size() > kMaxTextBytes) return Nothing();
  nodes_.push_back(
      {.kind = Kind::kText, .size = static_cast<uint32_t>(text.size()), .number = static_cast<int64_t>(text_.size())});
  text_.append(text);
  return static_cast<Id>(nodes_.size() - 1);
}

ValueTree::Id ValueTree::AddNumber(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? Add(Kind::kNumber, number) : Add(Kind::kReal);
}

// Most containers get all items at once. Other containers are moved to a place with twice the capacity.
void ValueTree::Append(Id id, std::span<const Id> more) {
  Node& node = nodes_[id];
  List& list = lists_[static_cast<size_t>(node.number)];
  const size_t size = node.size + more.size();
  if (size > list.room) {
    const size_t begin = items_.size();
    list.room = node.size == 0 ? size : std::bit_ceil(size);
    items_.resize(begin + list.room);
    std::copy_n(items_.begin() + static_cast<std::ptrdiff_t>(list.begin), node.size,
                items_.begin() + static_cast<std::ptrdiff_t>(begin));
    list.begin = begin;
  }
  std::copy(more.begin(), more.end(), items_.begin() + static_cast<std::ptrdiff_t>(list.begin + node.size));
  node.size = static_cast<uint32_t>(size);
}

int64_t ValueTree::number(Id id) const {
  if (kind(id) == Kind::kNumber) return nodes_[id].number;
  int64_t number = -1;
  const std::string_view digits = text(id);
  if (digits.size() > kMaxDigits) return number;  // many entries may refer to one long text
  const char* end = digits.data() + digits.size();
  return std::from_chars(digits.data(), end, number) == std::from_chars_result{end, std::errc()} ? number : -1;
}

std::string_view ValueTree::text(Id id) const {
  const Node& node = nodes_[id];
  if (node.kind != Kind::kText) return {};
  return {text_.data() + node.number, node.size};
}

std::span<const ValueTree::Id> ValueTree::items(Id id) const {
  const Node& node = nodes_[id];
  if (node.kind != Kind::kList && node.kind != Kind::kMap) return {};
  return {items_.data() + lists_[static_cast<size_t>(node.number)].begin, node.size};
}

ValueTree::Id ValueTree::Find(Id map, std::string_view key) const {
  if (kind(map) != Kind::kMap) return Nothing();
  const std::span<const Id> entries = items(map);
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const Node& node = nodes_[entries[i]];
    if (node.kind == Kind::kText && node.size == key.size() &&
        std::memcmp(text_.data() + node.number, key.data(), key.size()) == 0) {
      return entries[i + 1];
    }
  }
  return Nothing();
}

}  // namespace taskd::readers
