#include "readers/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/json_unescape.h"
#include "readers/number_text.h"

namespace taskd::readers {
namespace {

using namespace std::literals;
using Id = ValueTree::Id;
using Kind = ValueTree::Kind;

constexpr size_t kMaxName = 256;  // per module or class

// A memo index as protocol 0 writes it. kMaxNodes: invalid.
uint64_t NumberOf(std::string_view text) { return ReadNumber<uint64_t>(text, ValueTree::kMaxNodes); }

// Decodes Python's raw-unicode-escape: Latin-1, and \uXXXX or \UXXXXXXXX for other characters.
std::string OfRawUnicode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    uint32_t code = static_cast<uint8_t>(text[0]);
    size_t length = 1;
    const size_t digits = text.starts_with("\\u") ? 4 : text.starts_with("\\U") ? 8 : 0;
    if (digits > 0 && text.size() >= 2 + digits) {
      const char* end = text.data() + 2 + digits;
      uint32_t escaped = 0;
      if (std::from_chars(text.data() + 2, end, escaped, 16) == std::from_chars_result{end, std::errc()}) {
        code = escaped;
        length = 2 + digits;
      }
    }
    AppendUtf8(code, out);
    text.remove_prefix(length);
  }
  return out;
}

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
    // If the pickle was cut, values on the stack belong to the first container.
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

  // The next `length` bytes; fails and returns an empty text if there are fewer.
  std::string_view Take(uint64_t length) {
    if (length > bytes_.size() - next_) {
      Fail("it is cut");
      return "";
    }
    const std::string_view taken = bytes_.substr(next_, static_cast<size_t>(length));
    next_ += static_cast<size_t>(length);
    return taken;
  }

  // Reads a little-endian number of at most 8 bytes.
  uint64_t TakeNumber(size_t length) {
    static_assert(std::endian::native == std::endian::little);
    uint64_t number = 0;
    const std::string_view taken = Take(length);
    std::memcpy(&number, taken.data(), taken.size());
    return number;
  }

  // The text up to the next line feed, which is consumed; fails and returns an empty text if there is none.
  std::string_view TakeLine() {
    const size_t end = bytes_.find('\n', next_);
    if (end == std::string_view::npos) {
      Fail("it is cut");
      return {};
    }
    const std::string_view line = bytes_.substr(next_, end - next_);
    next_ = end + 1;
    return line;
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

  // Pushes "12", or a long number "12L".
  bool PushDecimal(std::string_view text) {
    if (text.ends_with('L')) text.remove_suffix(1);
    return Push(tree_.AddNumber(text));
  }
  bool PushInt(std::string_view line) {
    if (line == "00" || line == "01") return Push(tree_.Add(Kind::kBool, line == "01" ? 1 : 0));
    return PushDecimal(line);
  }

  std::span<const Id> From(size_t begin) const { return std::span(stack_).subspan(begin); }

  // Removes the newest mark. Returns the stack index of the first value above it.
  std::optional<size_t> PopMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) return std::nullopt;
    const size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
  }

  // Makes a tuple from the values at `begin` and above.
  bool PushTuple(size_t begin) {
    if (begin > stack_.size() || (!marks_.empty() && begin < marks_.back())) return false;
    const Id tuple = tree_.Add(Kind::kList);
    if (tuple != ValueTree::Nothing()) tree_.Append(tuple, From(begin));
    stack_.resize(begin);
    return Push(tuple);
  }

  // Moves the values at `begin` and above into the container below them.
  bool AppendFrom(size_t begin, Kind kind) {
    if (begin == 0 || begin > stack_.size() || tree_.kind(stack_[begin - 1]) != kind) return false;
    if (kind == Kind::kMap && (stack_.size() - begin) % 2 != 0) return false;
    appended_ += stack_.size() - begin;
    tree_.Append(stack_[begin - 1], From(begin));
    stack_.resize(begin);
    return appended_ <= ValueTree::kMaxNodes;
  }

  // Makes a container from the items, or from the keys and values, above the newest mark.
  bool PushContainer(Kind kind) {
    const std::optional<size_t> begin = PopMark();
    if (!begin || (kind == Kind::kMap && (stack_.size() - *begin) % 2 != 0)) return false;
    const Id container = tree_.Add(kind);
    if (container != ValueTree::Nothing()) tree_.Append(container, From(*begin));
    appended_ += stack_.size() - *begin;
    stack_.resize(*begin);
    return Push(container) && appended_ <= ValueTree::kMaxNodes;
  }

  bool Remember(uint64_t place) {
    if (stack_.empty() || place >= ValueTree::kMaxNodes) return false;
    if (place == memo_.size()) {
      memo_.push_back(stack_.back());
      return true;
    }
    if (place > memo_.size()) memo_.resize(static_cast<size_t>(place) + 1);
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
      stack_.resize(*begin);  // otherwise these were to be a tuple
    }
    // Values are normally put into their container once they are complete.
    while (stack_.size() > 1) {
      const size_t last = stack_.size() - 1;
      if (tree_.kind(stack_[last - 1]) == Kind::kList) {
        AppendFrom(last, Kind::kList);
      } else if (last < 2 || !AppendFrom(last - 1, Kind::kMap)) {
        stack_.pop_back();
      }
    }
  }

  // Opcodes that push a number or a text.
  bool DoScalar(uint8_t opcode) {
    switch (opcode) {
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
      case 'I':  // INT, BOOL
        return PushInt(TakeLine());
      case 'L':  // LONG
        return PushDecimal(TakeLine());
      case 'F':  // FLOAT
        TakeLine();
        return Push(tree_.Add(Kind::kReal));
      case 'V':  // UNICODE
        return Push(tree_.AddText(OfRawUnicode(TakeLine())));
      case 'G':  // BINFLOAT: its value is not used
        Take(8);
        return Push(tree_.Add(Kind::kReal));
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        return PushText(TakeNumber(1));
      case 'X':  // BINUNICODE
        return PushText(TakeNumber(4));
      case 0x8d:  // BINUNICODE8
        return PushText(TakeNumber(8));
      default:
        return false;
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
      case 'd':
        return PushContainer(Kind::kMap);
      case 'l':
        return PushContainer(Kind::kList);
      case ']':
      case ')':
        return Push(tree_.Add(Kind::kList));
      case 'q':
        return Remember(TakeNumber(1));
      case 'r':
        return Remember(TakeNumber(4));
      case 'p':
        return Remember(NumberOf(TakeLine()));
      case 'g':
        return Recall(NumberOf(TakeLine()));
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
        return DoScalar(opcode);
    }
  }

  static constexpr size_t kMaxMarks = 256;  // nested values

  const std::string_view bytes_;
  ValueTree& tree_;
  size_t next_ = 0;
  size_t at_ = 0;  // position of the opcode
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::vector<Id> memo_;
  size_t appended_ = 0;
  std::string problem_;
};

}  // namespace

bool IsPickle(std::string_view begin) {
  if (begin.size() > 1 && begin[0] == '\x80') return begin[1] <= 5;
  if (begin.starts_with("(dp0\n") || begin.starts_with("}q\0"sv)) return true;
  // Example: "c__main__\nName\np0\n"
  if (!begin.starts_with('c')) return false;
  for (int line = 0; line < 2; ++line) {
    const size_t end = begin.find('\n');
    const auto is_of_name = [](char c) { return absl::ascii_isalnum(static_cast<uint8_t>(c)) || c == '_' || c == '.'; };
    if (end == std::string_view::npos || end > kMaxName) return false;
    if (!std::all_of(begin.begin(), begin.begin() + static_cast<std::ptrdiff_t>(end), is_of_name)) return false;
    begin.remove_prefix(end + 1);
  }
  return begin.starts_with("p0\n") || begin.starts_with("q\0"sv);
}

std::string ReadPickle(std::string_view bytes, ValueTree& tree) { return Machine(bytes, tree).Run(); }

}  // namespace taskd::readers
