#include "readers/pickle.h"

#include <cstring>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace taskd::readers {
namespace {

using Id = ValueTree::Id;
using Kind = ValueTree::Kind;

class Machine {
 public:
  Machine(std::string_view bytes, ValueTree& tree) : bytes_(bytes), tree_(tree) {}

  std::string Run() {
    while (problem_.empty()) {
      at_ = next_;
      if (next_ >= bytes_.size()) {
        Fail("it is cut");
        break;
      }
      const auto opcode = static_cast<uint8_t>(bytes_[next_++]);
      if (opcode == '.') {
        if (stack_.size() != 1) Fail("it does not end with one value");
        break;
      }
      if (!Do(opcode) && problem_.empty()) {
        Fail(absl::StrCat("opcode 0x", absl::Hex(opcode, absl::kZeroPad2), " is not one of plain data"));
        return problem_;
      }
      if (tree_.is_full() || stack_.size() > ValueTree::kMaxNodes) Fail("it holds too many values");
    }
    Id root = ValueTree::Nothing();
    // Cut in the middle: what is on the stack belongs into the first container.
    if (!stack_.empty()) {
      Unwind();
      root = stack_.front();
    }
    tree_.SetRoot(root);
    return problem_;
  }

 private:
  void Fail(std::string_view what) {
    if (problem_.empty()) problem_ = absl::StrCat(std::string(what), " at byte ", at_);
  }

  // The next `length` bytes; empty and failed: they are not there.
  std::string_view Take(uint64_t length) {
    if (length > bytes_.size() - next_) {
      Fail("it is cut");
      return {};
    }
    const std::string_view taken = bytes_.substr(next_, static_cast<size_t>(length));
    next_ += static_cast<size_t>(length);
    return taken;
  }

  uint64_t TakeNumber(size_t length) {
    uint64_t number = 0;
    const std::string_view taken = Take(length);
    for (size_t i = 0; i < taken.size(); ++i) {
      number |= static_cast<uint64_t>(static_cast<uint8_t>(taken[i])) << (8 * i);
    }
    return number;
  }

  bool Push(Id id) {
    stack_.push_back(id);
    return true;
  }
  bool PushNumber(int64_t number) { return Push(tree_.Add(Kind::kNumber, number)); }
  bool PushText(uint64_t length) {
    const std::string_view text = Take(length);
    return problem_.empty() && Push(tree_.AddText(text));
  }

  // What lies above the newest mark, which goes.
  std::optional<std::vector<Id>> PopToMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) return std::nullopt;
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  bool PushTuple(size_t count) {
    if (stack_.size() < count || (!marks_.empty() && stack_.size() - count < marks_.back())) return false;
    const Id tuple = tree_.Add(Kind::kList);
    for (size_t i = stack_.size() - count; i < stack_.size() && tuple != ValueTree::Nothing(); ++i) {
      tree_.Append(tuple, stack_[i]);
    }
    stack_.resize(stack_.size() - count);
    return Push(tuple);
  }

  bool AppendAll(Kind kind, const std::vector<Id>& items) {
    if (stack_.empty() || tree_.kind(stack_.back()) != kind) return false;
    if (kind == Kind::kMap && items.size() % 2 != 0) return false;
    appended_ += items.size();
    for (Id item : items) tree_.Append(stack_.back(), item);
    return appended_ <= ValueTree::kMaxNodes;
  }

  bool Remember(uint64_t place) {
    if (stack_.empty() || place >= ValueTree::kMaxNodes) return false;
    memo_[place] = stack_.back();
    return true;
  }
  bool Recall(uint64_t place) {
    const auto found = memo_.find(place);
    return found != memo_.end() && Push(found->second);
  }

  void Unwind() {
    while (!marks_.empty()) {
      std::optional<std::vector<Id>> items = PopToMark();
      if (!items || stack_.empty()) return;
      const Kind kind = tree_.kind(stack_.back());
      if (kind != Kind::kMap && kind != Kind::kList) continue;  // a tuple that was begun
      if (items->size() % 2 != 0 && kind == Kind::kMap) items->pop_back();
      AppendAll(kind, *items);
    }
  }

  bool Do(uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        return TakeNumber(1) <= 5;
      case 0x95:  // FRAME
        TakeNumber(8);
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return marks_.size() <= kMaxMarks;
      case '}':
        return Push(tree_.Add(Kind::kMap));
      case ']':
      case ')':
        return Push(tree_.Add(Kind::kList));
      case 'N':
        return Push(tree_.Add(Kind::kNone));
      case 0x88:
      case 0x89:
        return Push(tree_.Add(Kind::kBool, opcode == 0x88 ? 1 : 0));
      case 'J':  // BININT
        return PushNumber(static_cast<int32_t>(TakeNumber(4)));
      case 'K':  // BININT1
        return PushNumber(static_cast<int64_t>(TakeNumber(1)));
      case 'M':  // BININT2
        return PushNumber(static_cast<int64_t>(TakeNumber(2)));
      case 0x8a: {  // LONG1
        const uint64_t length = TakeNumber(1);
        if (length > 8) {
          Take(length);
          return PushNumber(-1);
        }
        uint64_t number = TakeNumber(static_cast<size_t>(length));
        if (length > 0 && length < 8 && (number >> (8 * length - 1) & 1) != 0) number |= ~uint64_t{0} << (8 * length);
        return PushNumber(static_cast<int64_t>(number));
      }
      case 'G':  // BINFLOAT: nothing here needs its value
        Take(8);
        return Push(tree_.Add(Kind::kReal));
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        return PushText(TakeNumber(1));
      case 'X':  // BINUNICODE
        return PushText(TakeNumber(4));
      case 0x8d:  // BINUNICODE8
        return PushText(TakeNumber(8));
      case 'q':
        return Remember(TakeNumber(1));
      case 'r':
        return Remember(TakeNumber(4));
      case 0x94:  // MEMOIZE
        return Remember(memo_.size());
      case 'h':
        return Recall(TakeNumber(1));
      case 'j':
        return Recall(TakeNumber(4));
      case 't': {
        const std::optional<std::vector<Id>> items = PopToMark();
        if (!items) return false;
        stack_.insert(stack_.end(), items->begin(), items->end());
        return PushTuple(items->size());
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return PushTuple(opcode - 0x84u);
      case 'a':
      case 's': {
        const size_t count = opcode == 'a' ? 1 : 2;
        if (stack_.size() <= count) return false;
        const std::vector<Id> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
        stack_.resize(stack_.size() - count);
        return AppendAll(opcode == 'a' ? Kind::kList : Kind::kMap, items);
      }
      case 'e':
      case 'u': {
        const std::optional<std::vector<Id>> items = PopToMark();
        return items && AppendAll(opcode == 'e' ? Kind::kList : Kind::kMap, *items);
      }
      default:
        return false;
    }
  }

  static constexpr size_t kMaxMarks = 256;  // values within each other

  const std::string_view bytes_;
  ValueTree& tree_;
  size_t next_ = 0;
  size_t at_ = 0;  // of the opcode
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Id> memo_;
  size_t appended_ = 0;
  std::string problem_;
};

}  // namespace

std::string ReadPickle(std::string_view bytes, ValueTree& tree) { return Machine(bytes, tree).Run(); }

}  // namespace taskd::readers
