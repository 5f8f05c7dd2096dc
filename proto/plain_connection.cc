#include "proto/plain_connection.h"

#include <malloc.h>
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/frame_heads.h"
#include "proto/grpc_words.h"

namespace taskd::proto {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// RFC 9113 §3.4 and §4.1.
constexpr size_t kPrefaceBytes = NGHTTP2_CLIENT_MAGIC_LEN;
constexpr size_t kFrameHeadBytes = 9;
static_assert(HeaderBlocks::kMostBytes == kPlainHeaderBytes);
constexpr size_t kFramePayloadBytes = 16 << 10;  // the default of SETTINGS_MAX_FRAME_SIZE, which we leave as it is
constexpr size_t kBytesAFrame = 1 << 10;         // of a header block cost as much as a frame: each may be a field

constexpr size_t kQueuedBytes = 64;        // what a message in a queue costs besides its own bytes
constexpr size_t kOutputBytes = 16 << 10;  // serialized ahead of the socket
constexpr size_t kPathBytes = 256;
constexpr size_t kAcksWaiting = 100;

}  // namespace

std::string PercentEncode(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      encoded += c;
    } else {
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

int64_t ParseGrpcTimeout(std::string_view text) {
  constexpr int64_t kLongest = int64_t{10} * 365 * 24 * 3600;
  if (text.size() < 2 || text.size() > 9) return -1;
  int64_t value = 0;
  for (const char digit : text.substr(0, text.size() - 1)) {
    if (digit < '0' || digit > '9') return -1;
    value = value * 10 + (digit - '0');
  }
  switch (text.back()) {
    case 'H':
      return std::min(value * 3600, kLongest) * kNsPerSecond;
    case 'M':
      return std::min(value * 60, kLongest) * kNsPerSecond;
    case 'S':
      return std::min(value, kLongest) * kNsPerSecond;
    case 'm':
      return value * kNsPerMs;
    case 'u':
      return value * 1000;
    case 'n':
      return value;
    default:
      return -1;
  }
}

class PlainConnection::Session {
 public:
  Session(Calls* calls, int64_t now_ns)
      : calls_(calls), now_ns_(now_ns), born_ns_(now_ns), quiet_ns_(now_ns), heard_ns_(now_ns), frames_ns_(now_ns) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_option* option = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0) {
      nghttp2_session_callbacks_del(callbacks);
      Close("no memory");
      return;
    }
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks,
                                                            [](auto*, const nghttp2_frame* frame, void* self) {
                                                              return static_cast<Session*>(self)->BeginHeaders(*frame);
                                                            });
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](auto*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size, const uint8_t* value,
                      size_t value_size, uint8_t, void* self) {
          return static_cast<Session*>(self)->Header(frame->hd.stream_id,
                                                     {reinterpret_cast<const char*>(name), name_size},
                                                     {reinterpret_cast<const char*>(value), value_size});
        });
    // One that HTTP does not allow costs as much.
    nghttp2_session_callbacks_set_on_invalid_header_callback(
        callbacks, [](auto*, const nghttp2_frame*, const uint8_t*, size_t name_size, const uint8_t*, size_t value_size,
                      uint8_t, void* self) { return static_cast<Session*>(self)->CountField(name_size, value_size); });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](auto*, uint8_t, int32_t stream, const uint8_t* data, size_t size, void* self) {
          static_cast<Session*>(self)->Data(stream, {reinterpret_cast<const char*>(data), size});
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      static_cast<Session*>(self)->Received(*frame);
      return 0;
    });
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      static_cast<Session*>(self)->FrameSent(*frame);
      return 0;
    });
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, [](auto*, int32_t stream, uint32_t, void* self) {
      static_cast<Session*>(self)->StreamClosed(stream);
      return 0;
    });
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_outbound_ack(option, kAcksWaiting);
    nghttp2_option_set_max_deflate_dynamic_table_size(option, 0);  // our answers have nothing to compress
    nghttp2_mem memory = {this, Allocate, Free, AllocateZeroed, Reallocate};
    const int made = nghttp2_session_server_new3(&nghttp2_, callbacks, this, option, &memory);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    const std::array<nghttp2_settings_entry, 3> settings = {{
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kPlainStreams},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kPlainHeaderBytes},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},  // then PRIORITY makes no streams
    }};
    if (made != 0 || nghttp2_submit_settings(nghttp2_, NGHTTP2_FLAG_NONE, settings.data(), settings.size()) != 0) {
      Close("no memory");
    }
  }
  ~Session() {
    calls_ = nullptr;
    nghttp2_session_del(nghttp2_);
  }

  void Receive(std::string_view bytes, int64_t now_ns) {
    now_ns_ = now_ns;
    if (why_closed_ != nullptr) return;
    heard_ns_ = now_ns;
    pinged_ns_ = 0;
    RefillFrames();
    if (const char* why = Count(bytes); why != nullptr) return Abort(why);
    const ssize_t taken =
        nghttp2_session_mem_recv(nghttp2_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (taken != static_cast<ssize_t>(bytes.size())) return Abort(abort_ != nullptr ? abort_ : "broken HTTP/2");
    CloseIfOver();
  }

  void Tick(int64_t now_ns) {
    now_ns_ = now_ns;
    if (why_closed_ != nullptr) return;
    if (now_ns >= farewell_ns_) return Close("said farewell");
    if (!settled_ && now_ns >= born_ns_ + kPlainSettleMs * kNsPerMs) return Abort("SETTINGS are not acknowledged");
    if (StalledSince() <= now_ns - kPlainStallMs * kNsPerMs) return Close("it does not read");
    if (pinged_ns_ != 0 && now_ns >= pinged_ns_ + kPlainKeepaliveMs * kNsPerMs) return Close("it has gone silently");
    std::vector<std::pair<int32_t, absl::Status>> late;
    for (const auto& [id, stream] : streams_) {
      if (stream.finished) continue;
      if (now_ns >= stream.deadline_ns) {
        late.emplace_back(id, absl::DeadlineExceededError("the call's deadline is over"));
      } else if (!stream.begun && now_ns >= stream.since_ns + kPlainRequestMs * kNsPerMs) {
        late.emplace_back(id, absl::DeadlineExceededError("no first message"));
      }
    }
    for (const auto& [id, status] : late) Finish(id, status);
    if (streams_.empty()) {
      if (now_ns >= quiet_ns_ + kPlainIdleMs * kNsPerMs) Farewell();
    } else if (pinged_ns_ == 0 && now_ns >= heard_ns_ + kPlainKeepaliveMs * kNsPerMs) {
      pinged_ns_ = now_ns;
      nghttp2_submit_ping(nghttp2_, NGHTTP2_FLAG_NONE, nullptr);
    }
  }

  int64_t due_ns() const {
    if (why_closed_ != nullptr) return kNever;
    int64_t due = farewell_ns_;
    if (!settled_) due = std::min(due, born_ns_ + kPlainSettleMs * kNsPerMs);
    if (const int64_t stalled = StalledSince(); stalled != kNever)
      due = std::min(due, stalled + kPlainStallMs * kNsPerMs);
    if (pinged_ns_ != 0) {
      due = std::min(due, pinged_ns_ + kPlainKeepaliveMs * kNsPerMs);
    } else if (!streams_.empty()) {
      due = std::min(due, heard_ns_ + kPlainKeepaliveMs * kNsPerMs);
    }
    if (streams_.empty() && farewell_ns_ == kNever) due = std::min(due, quiet_ns_ + kPlainIdleMs * kNsPerMs);
    for (const auto& [id, stream] : streams_) {
      if (stream.finished) continue;
      due = std::min(due, stream.deadline_ns);
      if (!stream.begun) due = std::min(due, stream.since_ns + kPlainRequestMs * kNsPerMs);
    }
    return due;
  }

  void Write(int32_t id, std::string message, int64_t now_ns) {
    now_ns_ = now_ns;
    const auto found = streams_.find(id);
    if (found == streams_.end() || found->second.finished || why_closed_ != nullptr) return;
    if (unsent_ + kMessageHead + message.size() + kQueuedBytes > kPlainUnsentBytes) {
      // A status would wait for the client's window too. gRPC's clients read RESOURCE_EXHAUSTED from this.
      found->second.finished = true;
      nghttp2_submit_rst_stream(nghttp2_, NGHTTP2_FLAG_NONE, id, NGHTTP2_ENHANCE_YOUR_CALM);
      return;
    }
    message.insert(0, MessageHead(message.size()));
    if (queued_ == 0) taken_ns_ = now_ns_;
    queued_ += 1;
    unsent_ += message.size() + kQueuedBytes;
    found->second.messages.push_back(std::move(message));
    Answer(id, found->second);
  }

  void Finish(int32_t id, const absl::Status& status) {
    const auto found = streams_.find(id);
    if (found == streams_.end() || found->second.finished || why_closed_ != nullptr) return;
    Stream& stream = found->second;
    stream.finished = true;
    stream.status = status;
    requests_ -= std::exchange(stream.request, {}).size();
    if (stream.answering) {
      nghttp2_session_resume_data(nghttp2_, id);  // the status goes behind what is queued
    } else if (stream.messages.empty()) {
      SubmitStatus(id, stream, true);
    }
  }

  void Shut(const absl::Status& status, int64_t now_ns) {
    now_ns_ = now_ns;
    if (why_closed_ != nullptr) return;
    std::vector<int32_t> ids;
    for (const auto& [id, stream] : streams_) ids.push_back(id);
    for (const int32_t id : ids) Finish(id, status);
    Farewell();
  }

  std::string_view Output() {
    if (output_.empty()) {
      output_at_ = 0;
      const uint8_t* data = nullptr;
      while (why_closed_ == nullptr && output_.size() < kOutputBytes) {
        const ssize_t size = nghttp2_session_mem_send(nghttp2_, &data);
        if (size < 0) Close("no memory");
        if (size <= 0) break;
        if (output_.empty()) sent_ns_ = now_ns_;
        output_.append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
      }
      CloseIfOver();
    }
    return std::string_view(output_).substr(output_at_);
  }
  void Sent(size_t bytes, int64_t now_ns) {
    now_ns_ = now_ns;
    if (bytes == 0) return;
    sent_ns_ = now_ns;
    output_at_ += bytes;
    if (output_at_ < output_.size()) return;
    output_.clear();
    if (output_.capacity() > kOutputBytes) output_.shrink_to_fit();
    output_at_ = 0;
  }

  const char* why_closed() const { return why_closed_; }
  size_t held_bytes() const { return sizeof(Session) + held_ + requests_ + unsent_ + output_.capacity(); }

 private:
  struct Stream {
    int64_t since_ns = 0;
    int64_t deadline_ns = kNever;
    std::string path;
    std::string request;
    bool is_post = false, is_grpc = false, bad_timeout = false;
    bool request_ended = false;
    bool begun = false;                // Calls::Begin was called
    bool answering = false;            // the head of the answer is submitted, and its messages come from `messages`
    bool finished = false;             // `status` is the call's
    std::deque<std::string> messages;  // with their heads
    size_t message_at = 0;             // of the first one, what has gone
    absl::Status status;
  };

  // nghttp2's memory.
  static void* Allocate(size_t size, void* self) { return static_cast<Session*>(self)->Counted(nullptr, size, malloc); }
  static void* AllocateZeroed(size_t count, size_t size, void* self) {
    if (size != 0 && count > kPlainParserBytes / size) return nullptr;
    return static_cast<Session*>(self)->Counted(nullptr, count * size,
                                                [](size_t bytes) { return calloc(1, std::max<size_t>(bytes, 1)); });
  }
  static void* Reallocate(void* memory, size_t size, void* self) {
    return static_cast<Session*>(self)->Counted(memory, size,
                                                [memory](size_t bytes) { return realloc(memory, bytes); });
  }
  static void Free(void* memory, void* self) {
    static_cast<Session*>(self)->held_ -= malloc_usable_size(memory);
    free(memory);
  }
  template <typename Get>
  void* Counted(void* before, size_t size, const Get& get) {
    const size_t held = held_ - malloc_usable_size(before);
    if (size > kPlainParserBytes || held + size > kPlainParserBytes) return nullptr;
    void* memory = get(size);
    if (memory != nullptr) held_ = held + malloc_usable_size(memory);
    return memory;
  }

  void Close(const char* why) {
    if (why_closed_ == nullptr) why_closed_ = why;
  }
  // Closes, and says so. By hand: nghttp2 may be beyond use.
  void Abort(const char* why) {
    if (why_closed_ != nullptr) return;
    std::string frame = {0, 0, 8, NGHTTP2_GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NGHTTP2_ENHANCE_YOUR_CALM};
    const auto last = static_cast<uint32_t>(last_stream_);
    for (int i = 0; i < 4; ++i) frame[kFrameHeadBytes + i] = static_cast<char>(last >> (24 - 8 * i));
    output_ += frame;
    Close(why);
  }
  void Farewell() {
    if (farewell_ns_ != kNever) return;
    farewell_ns_ = now_ns_ + kPlainLingerMs * kNsPerMs;
    nghttp2_submit_goaway(nghttp2_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(nghttp2_),
                          NGHTTP2_NO_ERROR, nullptr, 0);
  }
  void CloseIfOver() {
    // After our farewell the client may close first, so that what it sent meanwhile is no error for it.
    if (why_closed_ == nullptr && farewell_ns_ == kNever && output_.empty() &&
        nghttp2_session_want_read(nghttp2_) == 0 && nghttp2_session_want_write(nghttp2_) == 0) {
      Close("HTTP/2 is over");
    }
  }

  int64_t StalledSince() const {
    int64_t since = kNever;
    if (!output_.empty()) since = sent_ns_;
    if (queued_ != 0) since = std::min(since, taken_ns_);
    return since;
  }

  void RefillFrames() {
    const int64_t more = (now_ns_ - frames_ns_) * kPlainFramesPerSecond / kNsPerSecond;
    if (more <= 0) return;
    frames_ns_ += more * kNsPerSecond / kPlainFramesPerSecond;
    frames_ = std::min(kPlainFrames, frames_ + more);
  }
  void Reward() { frames_ = std::min(kPlainFrames, frames_ + kPlainFramesPerAnswer); }

  // Reads the heads of frames ahead of nghttp2. Null, or which limit they break.
  const char* Count(std::string_view bytes) {
    while (const std::optional<FrameHead> head = heads_.Next(bytes)) {
      if (const char* why = CountFrame(*head); why != nullptr) return why;
    }
    return nullptr;
  }
  const char* CountFrame(const FrameHead& head) {
    if (head.size > kFramePayloadBytes) return "a frame of more than 16 KiB";
    const bool has_fields = head.type == FrameHead::kHeaders || head.type == FrameHead::kContinuation;
    frames_ -= 1 + (has_fields ? static_cast<int64_t>(head.size / kBytesAFrame) : 0);
    if (frames_ < 0) return "too many frames";
    return blocks_.Take(head) ? nullptr : "too many header bytes";
  }

  int BeginHeaders(const nghttp2_frame& frame) {
    field_count_ = 0;
    field_bytes_ = 0;
    if (frame.hd.type != NGHTTP2_HEADERS || frame.headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    last_stream_ = frame.hd.stream_id;
    streams_[frame.hd.stream_id].since_ns = now_ns_;
    return 0;
  }

  int CountField(size_t name_size, size_t value_size) {
    field_bytes_ += name_size + value_size + 32;  // as RFC 9113 §6.5.2 counts them
    if (++field_count_ <= kPlainHeaderFields && field_bytes_ <= kPlainHeaderBytes) return 0;
    abort_ = "too many header fields";
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }

  int Header(int32_t id, std::string_view name, std::string_view value) {
    if (const int failed = CountField(name.size(), value.size()); failed != 0) return failed;
    const auto found = streams_.find(id);
    if (found == streams_.end()) return 0;
    Stream& stream = found->second;
    if (name == ":path") {
      stream.path = value.substr(0, kPathBytes);
    } else if (name == ":method") {
      stream.is_post = value == "POST";
    } else if (name == "content-type") {
      constexpr std::string_view kGrpc = "application/grpc";
      stream.is_grpc = value.starts_with(kGrpc) &&
                       (value.size() == kGrpc.size() || value[kGrpc.size()] == '+' || value[kGrpc.size()] == ';');
    } else if (name == "grpc-timeout") {
      const int64_t timeout_ns = ParseGrpcTimeout(value);
      stream.bad_timeout = timeout_ns < 0;
      if (timeout_ns >= 0) stream.deadline_ns = now_ns_ + timeout_ns;
    }
    return 0;
  }

  void Data(int32_t id, std::string_view bytes) {
    const auto found = streams_.find(id);
    if (found == streams_.end() || found->second.finished || found->second.begun) return;
    Stream& stream = found->second;
    if (stream.request.size() + bytes.size() > kMessageHead + kPlainMessageBytes ||
        requests_ + bytes.size() > kPlainRequestBytes) {
      return Finish(id, absl::ResourceExhaustedError(
                            absl::StrCat("a request in plain text has at most ", kPlainMessageBytes, " bytes")));
    }
    requests_ += bytes.size();
    stream.request += bytes;
  }

  void Received(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_SETTINGS && (frame.hd.flags & NGHTTP2_FLAG_ACK) != 0) settled_ = true;
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
    const auto found = streams_.find(frame.hd.stream_id);
    if (found == streams_.end()) return;
    if (frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
      CheckHead(found->first, found->second);
    }
    if ((frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return;
    found->second.request_ended = true;
    if (!found->second.finished && !found->second.begun) Begin(found->first, found->second);
  }

  void CheckHead(int32_t id, Stream& stream) {
    if (!stream.is_post || !stream.is_grpc) {
      stream.finished = true;
      const nghttp2_nv status = Field(":status", stream.is_post ? "415" : "405");
      nghttp2_submit_response(nghttp2_, id, &status, 1, nullptr);
    } else if (stream.bad_timeout) {
      Finish(id, absl::InvalidArgumentError("grpc-timeout is none"));
    } else if (absl::Status known = calls_->Check(stream.path); !known.ok()) {
      Finish(id, known);
    }
  }

  void Begin(int32_t id, Stream& stream) {
    const std::string& request = stream.request;
    if (request.size() >= kMessageHead && request[0] == 1) {
      return Finish(id, absl::UnimplementedError("compressed messages are not taken"));
    }
    if (request.size() < kMessageHead || request[0] != 0 || MessageSize(request) != request.size() - kMessageHead) {
      return Finish(id, absl::InvalidArgumentError("a request is one message"));
    }
    stream.begun = true;
    requests_ -= request.size();
    const std::string whole = std::exchange(stream.request, {});
    calls_->Begin(id, stream.path, whole.substr(kMessageHead));
  }

  // There is a message: nghttp2 is to ask for it.
  void Answer(int32_t id, Stream& stream) {
    if (stream.answering) {
      nghttp2_session_resume_data(nghttp2_, id);
      return;
    }
    stream.answering = true;
    const std::array<nghttp2_nv, 2> fields = AnswerFields();
    nghttp2_data_provider provider = {};
    provider.read_callback = [](auto*, int32_t from, uint8_t* to, size_t size, uint32_t* flags, auto*, void* self) {
      return static_cast<Session*>(self)->Read(from, {reinterpret_cast<char*>(to), size}, flags);
    };
    nghttp2_submit_response(nghttp2_, id, fields.data(), fields.size(), &provider);
  }

  struct Room {
    char* to;
    size_t size;
  };
  // Fills a DATA frame.
  ssize_t Read(int32_t id, Room room, uint32_t* flags) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    Stream& stream = found->second;
    size_t filled = 0;
    while (filled < room.size && !stream.messages.empty()) {
      const std::string& message = stream.messages.front();
      const size_t part = std::min(room.size - filled, message.size() - stream.message_at);
      memcpy(room.to + filled, message.data() + stream.message_at, part);
      filled += part;
      stream.message_at += part;
      if (stream.message_at == message.size()) {
        Forget(message.size());
        stream.messages.pop_front();
        stream.message_at = 0;
        Reward();
      }
    }
    if (filled > 0) taken_ns_ = now_ns_;
    if (stream.messages.empty() && stream.finished) {
      *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      SubmitStatus(id, stream, false);
    } else if (filled == 0) {
      return NGHTTP2_ERR_DEFERRED;
    }
    return static_cast<ssize_t>(filled);
  }

  void SubmitStatus(int32_t id, const Stream& stream, bool alone) {
    const StatusFields status(stream.status);
    std::vector<nghttp2_nv> fields;
    if (alone) {
      const std::array<nghttp2_nv, 2> head = AnswerFields();
      fields.assign(head.begin(), head.end());
    }
    status.AddTo(&fields);
    if (alone) {
      fields.push_back(Field("grpc-accept-encoding", "identity"));
      nghttp2_submit_response(nghttp2_, id, fields.data(), fields.size(), nullptr);
    } else {
      nghttp2_submit_trailer(nghttp2_, id, fields.data(), fields.size());
    }
  }

  void FrameSent(const nghttp2_frame& frame) {
    if (frame.hd.type != NGHTTP2_HEADERS || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return;
    Reward();
    const auto found = streams_.find(frame.hd.stream_id);
    if (found == streams_.end()) return;
    quiet_ns_ = now_ns_;
    if (!found->second.request_ended) {  // RFC 9113 §8.1: the rest of the request is not wanted
      nghttp2_submit_rst_stream(nghttp2_, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR);
    }
  }

  void Forget(size_t message_bytes) {
    queued_ -= 1;
    unsent_ -= message_bytes + kQueuedBytes;
  }
  void StreamClosed(int32_t id) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    Stream& stream = found->second;
    if (stream.answering) quiet_ns_ = now_ns_;
    requests_ -= stream.request.size();
    for (const std::string& message : stream.messages) Forget(message.size());
    const bool begun = stream.begun;
    streams_.erase(found);
    if (begun && calls_ != nullptr) calls_->Over(id);
  }

  Calls* calls_;
  size_t held_ = 0;  // by nghttp2
  nghttp2_session* nghttp2_ = nullptr;
  int64_t now_ns_;
  const int64_t born_ns_;
  int64_t quiet_ns_;              // the last time that it made something of its being here
  int64_t heard_ns_;              // of its last byte
  int64_t pinged_ns_ = 0;         // our PING of a silence; 0: none
  int64_t sent_ns_ = 0;           // of the last byte of output_ that went
  int64_t taken_ns_ = 0;          // of the last byte of a message
  int64_t farewell_ns_ = kNever;  // when it ends for having said farewell
  bool settled_ = false;
  const char* abort_ = nullptr;  // why a callback fails
  const char* why_closed_ = nullptr;
  // Of the frames that come in:
  FrameHeads heads_{kPrefaceBytes};
  HeaderBlocks blocks_;
  int64_t frames_ = kPlainFrames;
  int64_t frames_ns_;  // up to when they have grown
  size_t field_count_ = 0, field_bytes_ = 0;

  std::map<int32_t, Stream> streams_;
  int32_t last_stream_ = 0;
  size_t requests_ = 0;             // bytes of requests that have not ended
  size_t queued_ = 0, unsent_ = 0;  // messages, and their bytes
  std::string output_;
  size_t output_at_ = 0;
};

PlainConnection::PlainConnection(Calls* calls, int64_t now_ns) : session_(std::make_unique<Session>(calls, now_ns)) {}
PlainConnection::~PlainConnection() = default;
void PlainConnection::Receive(std::string_view bytes, int64_t now_ns) { session_->Receive(bytes, now_ns); }
void PlainConnection::Tick(int64_t now_ns) { session_->Tick(now_ns); }
int64_t PlainConnection::due_ns() const { return session_->due_ns(); }
void PlainConnection::Write(int32_t stream, std::string message, int64_t now_ns) {
  session_->Write(stream, std::move(message), now_ns);
}
void PlainConnection::Finish(int32_t stream, const absl::Status& status) { session_->Finish(stream, status); }
void PlainConnection::Shut(const absl::Status& status, int64_t now_ns) { session_->Shut(status, now_ns); }
std::string_view PlainConnection::Output() { return session_->Output(); }
void PlainConnection::Sent(size_t bytes, int64_t now_ns) { session_->Sent(bytes, now_ns); }
bool PlainConnection::closed() const { return session_->why_closed() != nullptr; }
const char* PlainConnection::why_closed() const { return session_->why_closed(); }
size_t PlainConnection::held_bytes() const { return session_->held_bytes(); }

}  // namespace taskd::proto
