#include "readers/pickle.h"

#include <cstring>
#include <optional>
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
    if (problem_.empty()) stack_.push_back(id);
    return true;
  }
  bool PushNumber(int64_t number) { return Push(tree_.Add(Kind::kNumber, number)); }
  bool PushText(uint64_t length) {
    const std::string_view text = Take(length);
    return problem_.empty() && Push(tree_.AddText(text));
  }

  // Where in the stack what lies above the newest mark begins. The mark goes.
  std::optional<size_t> PopMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) return std::nullopt;
    const size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
  }

  // Of what lies at `begin` and above.
  bool PushTuple(size_t begin) {
    if (begin > stack_.size() || (!marks_.empty() && begin < marks_.back())) return false;
    const Id tuple = tree_.Add(Kind::kList);
    for (size_t i = begin; i < stack_.size() && tuple != ValueTree::Nothing(); ++i) tree_.Append(tuple, stack_[i]);
    stack_.resize(begin);
    return Push(tuple);
  }

  // What lies at `begin` and above goes into the container below it.
  bool AppendFrom(size_t begin, Kind kind) {
    if (begin == 0 || begin > stack_.size() || tree_.kind(stack_[begin - 1]) != kind) return false;
    if (kind == Kind::kMap && (stack_.size() - begin) % 2 != 0) return false;
    appended_ += stack_.size() - begin;
    for (size_t i = begin; i < stack_.size(); ++i) tree_.Append(stack_[begin - 1], stack_[i]);
    stack_.resize(begin);
    return appended_ <= ValueTree::kMaxNodes;
  }

  bool Remember(uint64_t place) {
    if (stack_.empty() || place >= ValueTree::kMaxNodes) return false;
    if (place >= memo_.size()) memo_.resize(static_cast<size_t>(place) + 1);
    memo_[static_cast<size_t>(place)] = stack_.back();
    return true;
  }
  bool Recall(uint64_t place) {
    if (place >= memo_.size() || memo_[static_cast<size_t>(place)] == ValueTree::Nothing()) return false;
    return Push(memo_[static_cast<size_t>(place)]);
  }

  void Unwind() {
    while (const std::optional<size_t> begin = PopMark()) {
      if (*begin == 0) return;
      const Kind kind = tree_.kind(stack_[*begin - 1]);
      if (kind == Kind::kMap && (stack_.size() - *begin) % 2 != 0) stack_.pop_back();  // a key without its value
      if (kind == Kind::kMap || kind == Kind::kList) AppendFrom(*begin, kind);
      stack_.resize(*begin);  // else it was to be a tuple
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
        const std::optional<size_t> begin = PopMark();
        return begin && PushTuple(*begin);
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        const size_t count = opcode - 0x84u;
        return stack_.size() >= count && PushTuple(stack_.size() - count);
      }
      case 'a':
      case 's': {
        const size_t count = opcode == 'a' ? 1 : 2;
        return stack_.size() > count && AppendFrom(stack_.size() - count, opcode == 'a' ? Kind::kList : Kind::kMap);
      }
      case 'e':
      case 'u': {
        const std::optional<size_t> begin = PopMark();
        return begin && AppendFrom(*begin, opcode == 'e' ? Kind::kList : Kind::kMap);
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
  std::vector<Id> memo_;
  size_t appended_ = 0;
  std::string problem_;
};

}  // namespace

std::string ReadPickle(std::string_view bytes, ValueTree& tree) { return Machine(bytes, tree).Run(); }

}  // namespace taskd::readers
