#include "proto/call_frames.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <utility>

namespace taskd::proto {
namespace {

constexpr size_t kMostFrameBytes = 16384;  // RFC 9113 §6.5.2: where nobody has said otherwise, and at least
constexpr int64_t kMostWindow = INT32_MAX;

// Of types that say something in numbers; the others are passed over.
bool IsLookedAt(uint8_t type) {
  return type == NGHTTP2_SETTINGS || type == NGHTTP2_PING || type == NGHTTP2_WINDOW_UPDATE;
}

// RFC 7541 §6.2.2, §5.2: a literal that goes into no table, without Huffman's code.
void AppendLiteral(std::string_view text, std::string* block) {
  size_t size = text.size();
  *block += static_cast<char>(std::min<size_t>(size, 127));
  if (size >= 127) {
    for (size -= 127; size >= 128; size >>= 7) *block += static_cast<char>(size | 0x80);
    *block += static_cast<char>(size);
  }
  *block += text;
}

}  // namespace

void CallFrames::Append(uint8_t type, uint8_t flags, int32_t stream, std::string_view payload) {
  for (const auto& [number, shift] :
       {std::pair(payload.size(), 16), std::pair(payload.size(), 8), std::pair(payload.size(), 0)}) {
    waiting_ += static_cast<char>(number >> shift);
  }
  waiting_ += static_cast<char>(type);
  waiting_ += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) waiting_ += static_cast<char>(static_cast<uint32_t>(stream) >> shift);
  waiting_ += payload;
}

void CallFrames::AppendNumber(uint8_t type, int32_t stream, uint32_t number) {
  std::string payload;
  for (const int shift : {24, 16, 8, 0}) payload += static_cast<char>(number >> shift);
  Append(type, 0, stream, payload);
}

size_t CallFrames::room() const {
  const int64_t window = std::min(terms_.connection_window, terms_.stream_window);
  return std::min(kMostFrameBytes, static_cast<size_t>(std::max<int64_t>(0, window)));
}

void CallFrames::TakeFromWindows(size_t size) {
  terms_.connection_window -= static_cast<int64_t>(size);
  terms_.stream_window -= static_cast<int64_t>(size);
}

void CallFrames::End(const std::vector<Field>& fields) {
  std::string block;
  for (const Field& field : fields) {
    block += '\0';
    AppendLiteral(field.name, &block);
    AppendLiteral(field.value, &block);
  }
  Append(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, terms_.stream, block);
  // RFC 9113 §8.1: what the client would still say is not wanted; and there is no other call.
  if (!ended_) AppendNumber(NGHTTP2_RST_STREAM, terms_.stream, NGHTTP2_NO_ERROR);
  std::string last(8, '\0');
  for (size_t i = 0; i < 4; ++i) last[i] = static_cast<char>(static_cast<uint32_t>(terms_.stream) >> (24 - 8 * i));
  Append(NGHTTP2_GOAWAY, 0, 0, last);
}

void CallFrames::Break(uint32_t error) {
  if (std::exchange(broken_, true)) return;
  std::string last(8, '\0');
  for (size_t i = 0; i < 4; ++i) {
    last[i] = static_cast<char>(static_cast<uint32_t>(terms_.stream) >> (24 - 8 * i));
    last[4 + i] = static_cast<char>(error >> (24 - 8 * i));
  }
  Append(NGHTTP2_GOAWAY, 0, 0, last);
}

void CallFrames::Receive(std::string_view bytes) {
  while (!bytes.empty() && !broken_) {
    if (head_size_ < head_bytes_.size()) {
      head_bytes_[head_size_++] = static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      if (head_size_ < head_bytes_.size()) continue;
      BeginFrame();
    } else {
      const std::string_view part = bytes.substr(0, left_);
      size_t taken = part.size();
      if (head_.type == NGHTTP2_DATA) {
        taken = TakeData(part);
      } else if (IsLookedAt(head_.type)) {
        payload_ += part;
      }
      left_ -= taken;
      bytes.remove_prefix(taken);
    }
    if (!broken_ && left_ == 0) EndFrame();
    if (waiting_.size() > kMostWaiting) Break(NGHTTP2_ENHANCE_YOUR_CALM);
  }
}

void CallFrames::BeginFrame() {
  const auto& b = head_bytes_;
  head_ = {.size = size_t{b[0]} << 16 | size_t{b[1]} << 8 | b[2],
           .type = b[3],
           .flags = b[4],
           .stream =
               static_cast<int32_t>((uint32_t{b[5]} & 0x7f) << 24 | uint32_t{b[6]} << 16 | uint32_t{b[7]} << 8 | b[8])};
  left_ = head_.size;
  padding_ = 0;
  if (head_.size > kMostFrameBytes) return Break(NGHTTP2_FRAME_SIZE_ERROR);
  switch (head_.type) {
    case NGHTTP2_DATA:
    case NGHTTP2_HEADERS:
    case NGHTTP2_RST_STREAM:
      if (head_.stream == 0) return Break(NGHTTP2_PROTOCOL_ERROR);
      if (head_.type == NGHTTP2_RST_STREAM && head_.size != 4) return Break(NGHTTP2_FRAME_SIZE_ERROR);
      break;
    case NGHTTP2_SETTINGS:
    case NGHTTP2_PING:
      if (head_.stream != 0) return Break(NGHTTP2_PROTOCOL_ERROR);
      break;
    case NGHTTP2_PUSH_PROMISE:
      return Break(NGHTTP2_PROTOCOL_ERROR);
    default:
      break;
  }
  if (head_.type == NGHTTP2_DATA && (head_.flags & NGHTTP2_FLAG_PADDED) != 0) {
    if (head_.size == 0) return Break(NGHTTP2_PROTOCOL_ERROR);
    padding_ = SIZE_MAX;  // its first byte says how much there is
  }
}

// How much of it was looked at.
size_t CallFrames::TakeData(std::string_view bytes) {
  if (padding_ == SIZE_MAX) {
    padding_ = static_cast<uint8_t>(bytes.front());
    if (padding_ >= left_) Break(NGHTTP2_PROTOCOL_ERROR);
    return 1;
  }
  const size_t data = std::min(bytes.size(), left_ - std::min(left_, padding_));
  if (data == 0) return bytes.size();
  if (head_.stream == terms_.stream && !ended_ && !given_up_) sink_.Data(bytes.substr(0, data));
  return data;
}

void CallFrames::EndFrame() {
  head_size_ = 0;
  const bool is_calls = head_.stream == terms_.stream;
  switch (head_.type) {
    case NGHTTP2_DATA:
      Grant(head_.size);
      break;
    case NGHTTP2_HEADERS:
      if (!is_calls) AppendNumber(NGHTTP2_RST_STREAM, head_.stream, NGHTTP2_REFUSED_STREAM);
      break;
    case NGHTTP2_RST_STREAM:
      if (is_calls && !std::exchange(given_up_, true)) sink_.GivenUp();
      break;
    case NGHTTP2_SETTINGS:
      TakeSettings();
      break;
    case NGHTTP2_PING:
      if (payload_.size() != 8) {
        Break(NGHTTP2_FRAME_SIZE_ERROR);
      } else if ((head_.flags & NGHTTP2_FLAG_ACK) == 0) {
        Append(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, payload_);
      }
      break;
    case NGHTTP2_WINDOW_UPDATE:
      TakeWindowUpdate();
      break;
    default:
      break;
  }
  std::string().swap(payload_);
  const bool ends = (head_.type == NGHTTP2_DATA || head_.type == NGHTTP2_HEADERS) && is_calls &&
                    (head_.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (ends && !given_up_ && !std::exchange(ended_, true)) sink_.Ended();
}

void CallFrames::Grant(size_t size) {
  const auto grant = [&](int64_t* taken, int32_t stream) {
    *taken += static_cast<int64_t>(size);
    if (*taken < terms_.own_window / 2) return;
    AppendNumber(NGHTTP2_WINDOW_UPDATE, stream, static_cast<uint32_t>(std::exchange(*taken, 0)));
  };
  grant(&taken_, 0);
  if (head_.stream == terms_.stream && !ended_ && !given_up_) grant(&taken_of_call_, terms_.stream);
}

uint32_t CallFrames::NumberAt(size_t at) const {
  uint32_t number = 0;
  for (size_t i = at; i < at + 4; ++i) number = number << 8 | static_cast<uint8_t>(payload_[i]);
  return number;
}

void CallFrames::TakeSettings() {
  constexpr size_t kOne = 6;
  const bool is_ack = (head_.flags & NGHTTP2_FLAG_ACK) != 0;
  if (payload_.size() % kOne != 0 || (is_ack && !payload_.empty())) return Break(NGHTTP2_FRAME_SIZE_ERROR);
  if (is_ack) return;
  for (size_t at = 0; at < payload_.size(); at += kOne) {
    const int id = static_cast<uint8_t>(payload_[at]) << 8 | static_cast<uint8_t>(payload_[at + 1]);
    const uint32_t value = NumberAt(at + 2);
    if (id != NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE) continue;
    if (value > kMostWindow) return Break(NGHTTP2_FLOW_CONTROL_ERROR);
    terms_.stream_window += value - std::exchange(terms_.initial_window, value);
    if (terms_.stream_window > kMostWindow) return Break(NGHTTP2_FLOW_CONTROL_ERROR);
  }
  Append(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");
}

void CallFrames::TakeWindowUpdate() {
  if (payload_.size() != 4) return Break(NGHTTP2_FRAME_SIZE_ERROR);
  const int64_t more = NumberAt(0) & 0x7fffffff;
  if (more == 0) return Break(NGHTTP2_PROTOCOL_ERROR);
  if (head_.stream != 0 && head_.stream != terms_.stream) return;
  int64_t& window = head_.stream == 0 ? terms_.connection_window : terms_.stream_window;
  window += more;
  if (window > kMostWindow) Break(NGHTTP2_FLOW_CONTROL_ERROR);
}

}  // namespace taskd::proto
