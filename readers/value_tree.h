// A small document (a dump of a flight recorder) as a tree, whichever format it was written in. Bounded: what is too
// large is refused by who builds it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taskd::readers {

class ValueTree {
 public:
  enum class Kind : uint8_t { kNone, kBool, kNumber, kReal, kText, kList, kMap };
  using Id = uint32_t;
  static constexpr size_t kMaxNodes = size_t{1} << 22;
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;

  // Nothing() once it is full.
  Id Add(Kind kind, int64_t number = 0);
  Id AddText(std::string_view text);    // copies it; text() of others is invalid then
  Id AddNumber(std::string_view text);  // kReal where it is none of 64 bits
  bool is_full() const { return nodes_.size() >= kMaxNodes || text_.size() > kMaxTextBytes; }
  // Of a list one item, of a map a key and its value. The same node may stand in several places.
  void Append(Id id, Id item) { lists_[Index(id)].push_back(item); }
  void SetRoot(Id id) { root_ = id; }

  Id root() const { return root_; }
  Kind kind(Id id) const { return nodes_[id].kind; }
  int64_t number(Id id) const;  // of a number, or of a text that is one; else -1
  bool is_true(Id id) const { return kind(id) == Kind::kBool && nodes_[id].number != 0; }
  std::string_view text(Id id) const;         // empty if it is none
  const std::vector<Id>& items(Id id) const;  // of a list; of a map keys and values in turns; else none
  // The value of a map's key; Nothing(): it is no map or has no such key.
  Id Find(Id map, std::string_view key) const;
  static constexpr Id Nothing() { return 0; }

 private:
  struct Node {
    Kind kind = Kind::kNone;
    int64_t number = 0;  // or the index in texts_ or lists_
  };

  size_t Index(Id id) const { return static_cast<size_t>(nodes_[id].number); }

  std::vector<Node> nodes_ = {Node{}};                // the first is Nothing()
  std::vector<std::pair<uint32_t, uint32_t>> texts_;  // where in text_, and how long
  std::string text_;
  std::vector<std::vector<Id>> lists_;
  Id root_ = 0;
};

}  // namespace taskd::readers
