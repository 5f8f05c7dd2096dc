// A small document (a dump of a flight recorder) as a tree, independent of its format. Its size is limited: the builder
// refuses a document that is too large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace taskd::readers {

class ValueTree {
 public:
  enum class Kind : uint8_t { kNone, kBool, kNumber, kReal, kText, kList, kMap };
  using Id = uint32_t;
  static constexpr size_t kMaxNodes = size_t{1} << 22;
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;

  // Makes the tree empty; keeps the memory.
  void Clear();

  // Returns Nothing() if the tree is full.
  Id Add(Kind kind, int64_t number = 0);
  Id AddText(std::string_view text);    // copies it; invalidates the results of text()
  Id AddNumber(std::string_view text);  // kReal if it is not an integer of 64 bits
  bool is_full() const { return nodes_.size() >= kMaxNodes || text_.size() > kMaxTextBytes; }
  // Appends items to a list, or alternating keys and values to a map; invalidates the results of items(). A node may be
  // in several places.
  void Append(Id id, std::span<const Id> more);
  void SetRoot(Id id) { root_ = id; }

  Id root() const { return root_; }
  Kind kind(Id id) const { return nodes_[id].kind; }
  int64_t number(Id id) const;  // of a number, or of a text that is one; else -1
  bool is_true(Id id) const { return kind(id) == Kind::kBool && nodes_[id].number != 0; }
  std::string_view text(Id id) const;      // empty if it is not a text
  std::span<const Id> items(Id id) const;  // of a list; alternating keys and values of a map; else empty
  // The value of a map's key; Nothing() if it is not a map or lacks the key.
  Id Find(Id map, std::string_view key) const;
  static constexpr Id Nothing() { return 0; }

 private:
  struct Node {
    Kind kind = Kind::kNone;
    uint32_t size = 0;   // bytes of a text, items of a list or map
    int64_t number = 0;  // or begin in text_, or index in lists_
  };
  struct List {
    size_t begin = 0;  // in items_
    size_t room = 0;   // capacity there
  };

  std::vector<Node> nodes_ = {Node{}};  // the first one is Nothing()
  std::string text_;
  std::vector<List> lists_;
  std::vector<Id> items_;
  Id root_ = 0;
};

}  // namespace taskd::readers
