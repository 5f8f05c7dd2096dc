#include "store/tier_frame.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::store {
namespace {

template <typename T>
void Append(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendStrings(const std::vector<std::string>& strings, std::string& out) {
  Append(static_cast<uint32_t>(strings.size()), out);
  for (const std::string& text : strings) {
    Append(static_cast<uint32_t>(text.size()), out);
    out += text;
  }
}

// Reads values from the front. After the first incomplete value every read fails.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }

  std::vector<std::string> TakeStrings(uint32_t most) {
    std::vector<std::string> strings;
    const uint32_t count = Take<uint32_t>();
    if (count > most || count > bytes_.size() / sizeof(uint32_t)) ok_ = false;
    if (!ok_) return strings;
    strings.reserve(count);
    for (uint32_t i = 0; i < count && ok_; ++i) {
      const uint32_t size = Take<uint32_t>();
      if (size > bytes_.size()) ok_ = false;
      if (!ok_) break;
      strings.emplace_back(bytes_.substr(0, size));
      bytes_.remove_prefix(size);
    }
    return strings;
  }

  std::vector<uint8_t> TakeStates() {
    const uint32_t count = Take<uint32_t>();
    if (count > bytes_.size() || count > kMaxFrameStrings) ok_ = false;
    if (!ok_) return {};
    std::vector<uint8_t> states(bytes_.begin(), bytes_.begin() + count);
    bytes_.remove_prefix(count);
    return states;
  }

  bool ok() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace

void AppendFrame(const TierFrame& frame, std::string& out) {
  const size_t begin = out.size();
  Append(uint32_t{0}, out);
  Append(frame.type, out);
  Append(frame.op, out);
  Append(static_cast<uint8_t>(frame.of_this_try), out);
  Append(frame.id, out);
  Append(frame.processed, out);
  Append(frame.number, out);
  AppendStrings(frame.keys, out);
  AppendStrings(frame.values, out);
  Append(static_cast<uint32_t>(frame.states.size()), out);
  out.append(frame.states.begin(), frame.states.end());
  const auto length = static_cast<uint32_t>(out.size() - begin - sizeof(uint32_t));
  std::memcpy(out.data() + begin, &length, sizeof(length));
}

absl::StatusOr<TierFrame> ParseFrame(std::string_view body) {
  Reader reader(body);
  TierFrame frame;
  frame.type = reader.Take<TierFrame::Type>();
  frame.op = reader.Take<StoreOp>();
  frame.of_this_try = reader.Take<uint8_t>() != 0;
  frame.id = reader.Take<uint64_t>();
  frame.processed = reader.Take<uint64_t>();
  frame.number = reader.Take<int64_t>();
  const bool is_list = frame.type == TierFrame::Type::kReply;
  frame.keys = reader.TakeStrings(kMaxFrameStrings);
  frame.values = reader.TakeStrings(is_list ? kMaxListBytes / kStringOverhead : kMaxFrameStrings);
  frame.states = reader.TakeStates();
  const auto type = static_cast<uint8_t>(frame.type);
  const auto op = static_cast<uint8_t>(frame.op);
  if (!reader.ok() || type < static_cast<uint8_t>(TierFrame::Type::kHello) ||
      type > static_cast<uint8_t>(TierFrame::Type::kRevoke) || op < static_cast<uint8_t>(StoreOp::kSet) ||
      op > static_cast<uint8_t>(StoreOp::kWatchKey)) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of ", body.size(), " bytes, type ", type, ", is broken"));
  }
  return frame;
}

}  // namespace taskd::store
