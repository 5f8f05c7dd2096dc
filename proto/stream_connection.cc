#include "proto/stream_connection.h"

#include <nghttp2/nghttp2.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/grpc_words.h"

namespace taskd::proto {
namespace {

constexpr size_t kPathOfCallBytes = 256;

// Memory of one session of nghttp2's, which keeps a buffer for the largest frame that it may send. Ours are small: on
// pages of its own, which cost nothing until they are used, it takes one of five.
class SessionMemory {
 public:
  SessionMemory() = default;
  ~SessionMemory() { Unmap(); }
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  nghttp2_mem calls() {
    return {
        this, [](size_t size, void* self) { return static_cast<SessionMemory*>(self)->Take(size); },
        [](void* block, void* self) { static_cast<SessionMemory*>(self)->Give(block); },
        [](size_t count, size_t size, void*) { return calloc(count, size); },
        [](void* block, size_t size, void* self) { return static_cast<SessionMemory*>(self)->Resize(block, size); }};
  }

 private:
  static constexpr size_t kOfFrame = size_t{16} << 10;

  void* Take(size_t size) {
    if (size < kOfFrame || mapped_ != nullptr) return malloc(size);
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return malloc(size);
    madvise(pages, size, MADV_NOHUGEPAGE);
    size_ = size;
    return mapped_ = pages;
  }
  void Give(void* block) {
    if (block == nullptr || block != mapped_) return free(block);
    Unmap();
  }
  void* Resize(void* block, size_t size) {
    if (block == nullptr) return Take(size);
    if (block != mapped_) return realloc(block, size);
    void* moved = malloc(size);
    if (moved == nullptr) return nullptr;
    memcpy(moved, block, std::min(size, size_));
    Unmap();
    return moved;
  }
  void Unmap() {
    if (mapped_ != nullptr) munmap(mapped_, size_);
    mapped_ = nullptr;
  }

  void* mapped_ = nullptr;  // the first block of that size
  size_t size_ = 0;
};

}  // namespace

class StreamConnection::Session {
 public:
  Session(Open open, HalfSaid* half_said) : open_(std::move(open)), half_said_(*half_said) {
    nghttp2_session_callbacks* callbacks = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks) != 0) return;
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks,
                                                          [](auto*, const nghttp2_frame_hd* head, void* self) {
                                                            return static_cast<Session*>(self)->BeginFrame(head->type);
                                                          });
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](auto*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size, const uint8_t* value,
                      size_t value_size, uint8_t, void* self) {
          return static_cast<Session*>(self)->Header(*frame, {reinterpret_cast<const char*>(name), name_size},
                                                     {reinterpret_cast<const char*>(value), value_size});
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](auto*, uint8_t, int32_t stream, const uint8_t* data, size_t size, void* self) {
          static_cast<Session*>(self)->Data(stream, {reinterpret_cast<const char*>(data), size});
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      return static_cast<Session*>(self)->Received(*frame);
    });
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      static_cast<Session*>(self)->Sent(*frame);
      return 0;
    });
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, [](auto*, int32_t stream, uint32_t, void* self) {
      auto* connection = static_cast<Session*>(self);
      if (stream == connection->stream_) connection->closed_ = true;
      return 0;
    });
    nghttp2_mem memory = memory_.calls();
    if (nghttp2_session_server_new3(&nghttp2_, callbacks, this, nullptr, &memory) != 0) nghttp2_ = nullptr;
    nghttp2_session_callbacks_del(callbacks);
    if (nghttp2_ == nullptr) return;
    // Without a word in them: another server may go on with this connection.
    nghttp2_submit_settings(nghttp2_, NGHTTP2_FLAG_NONE, nullptr, 0);
    const uint8_t* bytes = nullptr;
    const ssize_t size = nghttp2_session_mem_send(nghttp2_, &bytes);
    if (size > 0) settings_.assign(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }

  ~Session() {
    TakeHalf();
    nghttp2_session_del(nghttp2_);
  }

  absl::Status Receive(std::string_view bytes) {
    if (nghttp2_ == nullptr) return absl::ResourceExhaustedError("no memory");
    if (serves_ == Serves::kUnknown) {
      received_ += bytes;
      if (received_.size() > kMostBytesBeforeCall) serves_ = Serves::kNothing;
    }
    if (serves_ == Serves::kNothing) return absl::OkStatus();
    const ssize_t taken =
        nghttp2_session_mem_recv(nghttp2_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (serves_ == Serves::kNothing) return absl::OkStatus();
    if (serves_ == Serves::kCall && !received_.empty()) std::string().swap(received_);
    if (finished_ || closed_) call_.reset();
    if (taken != static_cast<ssize_t>(bytes.size())) return absl::InvalidArgumentError("broken HTTP/2");
    return absl::OkStatus();
  }

  void Ready() {
    if (stream_ != 0 && !closed_) nghttp2_session_resume_data(nghttp2_, stream_);
  }

  void Finish(const absl::Status& status) {
    if (std::exchange(finished_, true)) return;
    status_ = status;
    TakeHalf();
    Ready();
  }

  void Output(size_t most, std::string& to) {
    to += std::exchange(settings_, {});
    if (serves_ != Serves::kCall) return;
    while (to.size() < most) {
      const uint8_t* bytes = nullptr;
      const ssize_t size = nghttp2_session_mem_send(nghttp2_, &bytes);
      if (size < 0) closed_ = true;  // there is no memory
      if (size <= 0) break;
      to.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    }
    if (finished_ || closed_) call_.reset();
  }

  bool over() const {
    const bool ends = closed_ || nghttp2_session_want_read(nghttp2_) == 0;  // the call, or all of HTTP/2
    return serves_ == Serves::kCall && ends && nghttp2_session_want_write(nghttp2_) == 0;
  }

  Serves serves() const { return serves_; }
  std::string TakeReceived() { return std::move(received_); }
  bool has_message() const { return has_message_; }

 private:
  // Before a call only what each client begins with, which asks for no answer but the acknowledgement that the server
  // gives that goes on.
  int BeginFrame(uint8_t type) {
    if (serves_ == Serves::kUnknown && type != NGHTTP2_SETTINGS && type != NGHTTP2_WINDOW_UPDATE &&
        type != NGHTTP2_HEADERS) {
      serves_ = Serves::kNothing;
    }
    return 0;
  }

  int Header(const nghttp2_frame& frame, std::string_view name, std::string_view value) {
    if (serves_ != Serves::kUnknown || frame.hd.type != NGHTTP2_HEADERS) return 0;
    if (name == ":path") path_ = value.substr(0, kPathOfCallBytes);
    if (name == kOnlyCall) is_only_ = true;
    return 0;
  }

  int Received(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
      if (serves_ == Serves::kUnknown) BeginCall(frame.hd.stream_id);
      if (serves_ == Serves::kCall && frame.hd.stream_id != stream_) {
        nghttp2_submit_rst_stream(nghttp2_, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_REFUSED_STREAM);
      }
    }
    if (call_ == nullptr || frame.hd.stream_id != stream_ || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return 0;
    ended_ = true;
    if (!finished_) {
      Finish(message_.empty() ? call_->Ended()
                              : absl::InvalidArgumentError("the call ends in the middle of a message"));
    }
    return 0;
  }

  void BeginCall(int32_t stream) {
    if (is_only_) call_ = open_(path_);
    serves_ = call_ == nullptr ? Serves::kNothing : Serves::kCall;
    if (call_ == nullptr) return;
    stream_ = stream;
    nghttp2_session_set_local_window_size(nghttp2_, NGHTTP2_FLAG_NONE, 0, kWindowBytes);
    nghttp2_session_set_local_window_size(nghttp2_, NGHTTP2_FLAG_NONE, stream, kWindowBytes);
    const std::array<nghttp2_nv, 2> fields = AnswerFields();
    nghttp2_data_provider provider = {};
    provider.read_callback = &Session::FillFrame;
    nghttp2_submit_response(nghttp2_, stream, fields.data(), fields.size(), &provider);
  }

  void Data(int32_t stream, std::string_view bytes) {
    if (stream != stream_ || call_ == nullptr) return;
    while (!bytes.empty() && !finished_) {
      // Whole ones are not copied.
      const bool is_whole = message_.empty() && bytes.size() >= kMessageHead &&
                            bytes.size() - kMessageHead >= MessageSize(bytes) && bytes[0] == 0;
      if (is_whole) {
        const size_t size = MessageSize(bytes);
        Take(bytes.substr(kMessageHead, size));
        bytes.remove_prefix(kMessageHead + size);
        continue;
      }
      size_t wanted = kMessageHead;
      if (message_.size() >= kMessageHead) wanted += MessageSize(message_);
      const size_t part = std::min(wanted - message_.size(), bytes.size());
      message_ += bytes.substr(0, part);
      half_said_.bytes += part;
      bytes.remove_prefix(part);
      if (message_.size() < kMessageHead) continue;
      const size_t size = MessageSize(message_);
      if (message_[0] != 0) {
        Finish(absl::UnimplementedError("compressed messages are not taken"));
      } else if (size > kMostMessageBytes) {
        Finish(absl::ResourceExhaustedError(
            absl::StrCat("a message of ", size, " bytes; at most ", kMostMessageBytes, " are taken")));
      } else if (half_said_.bytes > HalfSaid::kMostBytes) {
        Finish(absl::ResourceExhaustedError("all clients together have too much half said"));
      } else if (message_.size() == kMessageHead + size) {
        const std::string whole = TakeHalf();
        Take(std::string_view(whole).substr(kMessageHead));
      }
    }
  }

  std::string TakeHalf() {
    half_said_.bytes -= message_.size();
    return std::exchange(message_, {});
  }

  void Take(std::string_view message) {
    has_message_ = true;
    absl::Status taken = call_->Take(message);
    if (!taken.ok()) Finish(taken);
  }

  static ssize_t FillFrame(nghttp2_session*, int32_t, uint8_t* to, size_t size, uint32_t* flags, nghttp2_data_source*,
                           void* self) {
    return static_cast<Session*>(self)->Fill(reinterpret_cast<char*>(to), size, flags);
  }

  // Fills a frame.
  ssize_t Fill(char* to, size_t size, uint32_t* flags) {
    size_t filled = 0;
    while (filled < size) {
      if (outgoing_.empty()) {
        if (finished_ || call_ == nullptr) break;
        std::string message;
        absl::StatusOr<bool> is_one = call_->Next(&message);
        if (!is_one.ok()) Finish(is_one.status());
        if (!is_one.ok() || !*is_one) break;
        outgoing_ = MessageHead(message.size());
        outgoing_ += message;
      }
      const size_t part = std::min(size - filled, outgoing_.size() - outgoing_at_);
      memcpy(to + filled, outgoing_.data() + outgoing_at_, part);
      filled += part;
      outgoing_at_ += part;
      if (outgoing_at_ < outgoing_.size()) continue;
      std::string().swap(outgoing_);
      outgoing_at_ = 0;
    }
    if (outgoing_.empty() && finished_) {
      *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      SubmitStatus();
    } else if (filled == 0) {
      return NGHTTP2_ERR_DEFERRED;
    }
    return static_cast<ssize_t>(filled);
  }

  void SubmitStatus() {
    std::vector<nghttp2_nv> fields;
    const StatusFields status(status_);
    status.AddTo(&fields);
    nghttp2_submit_trailer(nghttp2_, stream_, fields.data(), fields.size());
  }

  void Sent(const nghttp2_frame& frame) {
    if (frame.hd.type != NGHTTP2_HEADERS || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return;
    // RFC 9113 §8.1: what the client would still say is not wanted; and there is no other call.
    if (!ended_) nghttp2_submit_rst_stream(nghttp2_, NGHTTP2_FLAG_NONE, stream_, NGHTTP2_NO_ERROR);
    nghttp2_submit_goaway(nghttp2_, NGHTTP2_FLAG_NONE, stream_, NGHTTP2_NO_ERROR, nullptr, 0);
  }

  const Open open_;
  HalfSaid& half_said_;
  SessionMemory memory_;  // before what is in it
  nghttp2_session* nghttp2_ = nullptr;
  Serves serves_ = Serves::kUnknown;
  std::string settings_;  // to be sent first
  std::string received_;  // while it is unknown what is served
  std::string path_;
  bool is_only_ = false;
  int32_t stream_ = 0;  // the call's; 0: there is none yet
  std::unique_ptr<StreamCall> call_;
  bool ended_ = false;  // the client says nothing more
  bool finished_ = false;
  bool closed_ = false;
  bool has_message_ = false;
  absl::Status status_;   // once it is finished
  std::string message_;   // a part of one that comes, with its head
  std::string outgoing_;  // one that goes, with its head
  size_t outgoing_at_ = 0;
};

StreamConnection::StreamConnection(Open open, HalfSaid* half_said)
    : session_(std::make_unique<Session>(std::move(open), half_said)) {}
StreamConnection::~StreamConnection() = default;
absl::Status StreamConnection::Receive(std::string_view bytes) { return session_->Receive(bytes); }
StreamConnection::Serves StreamConnection::serves() const { return session_->serves(); }
std::string StreamConnection::TakeReceived() { return session_->TakeReceived(); }
void StreamConnection::Ready() { session_->Ready(); }
void StreamConnection::Finish(const absl::Status& status) { session_->Finish(status); }
bool StreamConnection::has_message() const { return session_->has_message(); }
void StreamConnection::Output(size_t most, std::string& to) { session_->Output(most, to); }
bool StreamConnection::over() const { return session_->over(); }

void SettingsAck::Pass(std::string_view bytes, std::string& to) {
  while (!bytes.empty()) {
    if (is_out_) {
      to += bytes;
      return;
    }
    if (skip_ > 0) {
      const size_t part = std::min(skip_, bytes.size());
      to += bytes.substr(0, part);
      bytes.remove_prefix(part);
      skip_ -= part;
      continue;
    }
    head_[head_size_++] = bytes.front();
    bytes.remove_prefix(1);
    if (head_size_ < head_.size()) continue;
    head_size_ = 0;
    is_out_ = head_[3] == NGHTTP2_SETTINGS && (head_[4] & NGHTTP2_FLAG_ACK) != 0;
    if (is_out_) continue;
    to.append(head_.data(), head_.size());
    for (size_t i = 0; i < 3; ++i) skip_ = skip_ << 8 | static_cast<unsigned char>(head_[i]);
  }
}

}  // namespace taskd::proto
