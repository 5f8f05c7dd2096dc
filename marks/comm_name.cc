// The scanner is written by hand because the proxy reads thousands of these names per second on the training nodes.
#include "marks/comm_name.h"

#include <array>
#include <charconv>

#include "common/json_unescape.h"

namespace taskd {
namespace {

struct OpName {
  std::string_view name;  // without "Hccl", lower case, letters only
  CommOp op;
};

// The first entry that is a prefix of the name counts (AllGatherV, AlltoAllVC), so longer entries come first.
constexpr std::array<OpName, 13> kOps = {{
    {"allreduce", CommOp::kAllReduce},
    {"allgather", CommOp::kAllGather},
    {"reducescatter", CommOp::kReduceScatter},
    {"batchsendrecv", CommOp::kSendRecv},
    {"sendrecv", CommOp::kSendRecv},
    {"send", CommOp::kSend},
    {"recv", CommOp::kRecv},
    {"receive", CommOp::kRecv},
    {"alltoall", CommOp::kAllToAll},
    {"broadcast", CommOp::kBroadcast},
    {"reduce", CommOp::kReduce},
    {"scatter", CommOp::kScatter},
    {"gather", CommOp::kGather},
}};

CommOp OpOf(std::string_view name) {
  char letters[32];
  size_t length = 0;
  for (char c : name) {
    if (length == sizeof(letters)) break;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    if (c >= 'a' && c <= 'z') letters[length++] = c;
  }
  std::string_view text(letters, length);
  if (text.starts_with("hccl") || text.starts_with("nccl")) text.remove_prefix(4);
  for (const OpName& op : kOps) {
    if (text.starts_with(op.name)) return op.op;
  }
  return text.starts_with("barrier") ? CommOp::kBarrier : CommOp::kOther;
}

struct TypeSize {
  std::string_view name;
  uint64_t bytes;
};

// The table has torch_npu's names of HCCL's data types, and other usual names.
constexpr std::array<TypeSize, 26> kTypes = {{
    {"bfp16", 2}, {"bf16", 2},    {"bfloat16", 2}, {"fp32", 4},    {"fp16", 2},    {"float", 4},  {"int8", 1},
    {"uint8", 1}, {"int16", 2},   {"uint16", 2},   {"int32", 4},   {"uint32", 4},  {"int64", 8},  {"uint64", 8},
    {"fp64", 8},  {"int128", 16}, {"float32", 4},  {"float16", 2}, {"float64", 8}, {"double", 8}, {"half", 2},
    {"bool", 1},  {"byte", 1},    {"hif8", 1},     {"fp8e4m3", 1}, {"fp8e5m2", 1},
}};

uint64_t SizeOf(std::string_view type) {
  for (const TypeSize& entry : kTypes) {
    if (type == entry.name) return entry.bytes;
  }
  return 0;
}

// common/json_scanner.h cannot read these names: they may be cut anywhere, and their quotes may be escaped.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}

  void SkipSpace() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r' || *p_ == ',')) ++p_;
  }
  bool Skip(char c) {
    SkipSpace();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  // Reads a string, or a bare number or word. `escapes` is the number of times that the value has to be unescaped.
  bool Value(std::string_view& value, int& escapes) {
    SkipSpace();
    escapes = 0;
    if (p_ < end_ && *p_ == '"') {
      ++p_;
      return Plain(value, escapes);
    }
    if (end_ - p_ >= 2 && p_[0] == '\\' && p_[1] == '"') {
      p_ += 2;
      return Escaped(value, escapes);
    }
    const char* begin = p_;
    while (p_ < end_ && *p_ != ',' && *p_ != '}' && *p_ != ' ' && *p_ != '\\' && *p_ != '"' && *p_ != ':') ++p_;
    value = {begin, static_cast<size_t>(p_ - begin)};
    return p_ < end_ && p_ > begin;
  }

 private:
  bool Plain(std::string_view& value, int& escapes) {
    for (const char* begin = p_; p_ < end_; ++p_) {
      if (*p_ == '"') {
        value = {begin, static_cast<size_t>(p_ - begin)};
        ++p_;
        return true;
      }
      if (*p_ == '\\') {
        escapes = 1;
        if (++p_ == end_) return false;
      }
    }
    return false;
  }
  bool Escaped(std::string_view& value, int& escapes) {
    for (const char* begin = p_; p_ < end_; ++p_) {
      if (*p_ != '\\') continue;
      if (end_ - p_ < 2) return false;
      if (p_[1] == '"') {
        value = {begin, static_cast<size_t>(p_ - begin)};
        p_ += 2;
        return true;
      }
      escapes = 2;
      if (p_[1] != '\\') {
        ++p_;  // an escape of the outer text only, such as \u00e4
        continue;
      }
      // The outer text's backslash begins an escape of the inner text. The inner escape may itself be an escaped
      // backslash.
      p_ += 2;
      if (p_ < end_ && *p_ == '\\') ++p_;
    }
    return false;
  }

  const char* p_;
  const char* end_;
};

// Undoes the escapes of a JSON string. Returns the text unchanged if one of them is invalid.
std::string Unescape(std::string_view text) {
  std::string out;
  return AppendJsonUnescaped(text, out) ? out : std::string(text);
}

template <typename Number>
bool ParseNumber(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()};
}

}  // namespace

bool ParseCommName(std::string_view name, std::string& storage, CommName& out) {
  Scanner scanner(name);
  if (!scanner.Skip('{')) return false;
  out = CommName();
  bool has_group = false;
  bool has_op = false;
  uint64_t count = 0;
  uint64_t size = 0;
  int32_t source = -1;
  int32_t destination = -1;
  std::string_view key;
  std::string_view value;
  int escapes = 0;
  // A name may be cut anywhere: the pairs before the cut count.
  while (scanner.Value(key, escapes) && scanner.Skip(':') && scanner.Value(value, escapes)) {
    if (key == "groupName") {
      out.group = value;
      has_group = true;
      if (escapes != 0) {
        storage = value;
        for (; escapes > 0; --escapes) storage = Unescape(storage);
        out.group = storage;
      }
    } else if (key == "opName") {
      out.op = OpOf(value);
      has_op = true;
    } else if (key == "count") {
      if (!ParseNumber(value, count)) count = 0;
    } else if (key == "dataType") {
      size = SizeOf(value);
    } else if (key == "destRank") {
      if (!ParseNumber(value, destination)) destination = -1;
    } else if (key == "srcRank") {
      if (!ParseNumber(value, source)) source = -1;
    }
  }
  if (!has_group || !has_op) return false;
  if (__builtin_mul_overflow(count, size, &out.bytes)) out.bytes = 0;
  if (out.op == CommOp::kSend) out.peer = destination;
  if (out.op == CommOp::kRecv) out.peer = source;
  if (out.op == CommOp::kSendRecv) out.peer = destination >= 0 ? destination : source;
  if (out.peer < 0) out.peer = -1;
  return true;
}

}  // namespace taskd
