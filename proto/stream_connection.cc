#include "proto/stream_connection.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/call_frames.h"
#include "proto/grpc_words.h"

namespace taskd::proto {
namespace {

constexpr size_t kPathOfCallBytes = 256;
constexpr size_t kPreface = 24;
constexpr size_t kFrameHead = 9;  // RFC 9113 §4.1

size_t FrameSize(std::string_view head) {
  size_t size = 0;
  for (size_t i = 0; i < 3; ++i) size = size << 8 | static_cast<unsigned char>(head[i]);
  return size;
}

}  // namespace

class StreamConnection::Session final : private CallFrames::Sink {
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
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      return static_cast<Session*>(self)->Received(*frame);
    });
    if (nghttp2_session_server_new(&nghttp2_, callbacks, this) != 0) nghttp2_ = nullptr;
    nghttp2_session_callbacks_del(callbacks);
    if (nghttp2_ == nullptr) return;
    // Without a word in them: another server may go on with this connection.
    nghttp2_submit_settings(nghttp2_, NGHTTP2_FLAG_NONE, nullptr, 0);
    SayWhatNghttp2Says();
  }

  ~Session() {
    TakeHalf();
    nghttp2_session_del(nghttp2_);
  }

  absl::Status Receive(std::string_view bytes) {
    absl::Status status = serves_ == Serves::kCall ? ReceiveOfCall(bytes) : ReceiveFirst(bytes);
    if (finished_ || closed_) call_.reset();
    return status;
  }

  void Ready() { may_have_message_ = true; }

  void Finish(const absl::Status& status) {
    if (std::exchange(finished_, true)) return;
    status_ = status;
    TakeHalf();
  }

  void Output(size_t most, std::string& to) {
    to += std::exchange(first_said_, {});
    if (serves_ != Serves::kCall) return;
    bool may_say_more = !closed_;
    while (to.size() < most) {
      to += frames_->TakeWaiting();
      if (!may_say_more) break;
      may_say_more = SayNext();
    }
    if (finished_ || closed_) call_.reset();
  }

  // What waits when it closes is the last.
  bool over() const { return closed_ && !frames_->is_waiting() && first_said_.empty(); }

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
      BeginCall(frame.hd.stream_id, (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0);
    }
    return 0;
  }

  void BeginCall(int32_t stream, bool ends) {
    if (serves_ != Serves::kUnknown) return;
    if (is_only_) call_ = open_(path_);
    serves_ = call_ == nullptr ? Serves::kNothing : Serves::kCall;
    if (call_ == nullptr) return;
    stream_ = stream;
    ends_at_once_ = ends;
    nghttp2_session_set_local_window_size(nghttp2_, NGHTTP2_FLAG_NONE, 0, kWindowBytes);
    nghttp2_session_set_local_window_size(nghttp2_, NGHTTP2_FLAG_NONE, stream, kWindowBytes);
    const std::array<nghttp2_nv, 2> fields = AnswerFields();
    nghttp2_submit_headers(nghttp2_, NGHTTP2_FLAG_NONE, stream, nullptr, fields.data(), fields.size(), nullptr);
  }

  // A frame at a time, so that nghttp2 sees none of the call's.
  absl::Status ReceiveFirst(std::string_view bytes) {
    if (nghttp2_ == nullptr) return absl::ResourceExhaustedError("no memory");
    if (serves_ == Serves::kNothing) return absl::OkStatus();
    received_ += bytes;
    if (received_.size() > kMostBytesBeforeCall) serves_ = Serves::kNothing;
    while (serves_ == Serves::kUnknown) {
      if (read_ == frame_end_ && received_.size() < read_ + kFrameHead) return absl::OkStatus();
      if (read_ == frame_end_) frame_end_ += kFrameHead + FrameSize(std::string_view(received_).substr(read_));
      const size_t part = std::min(frame_end_, received_.size()) - read_;
      const auto* next = reinterpret_cast<const uint8_t*>(received_.data() + read_);
      read_ += part;
      const bool is_taken = nghttp2_session_mem_recv(nghttp2_, next, part) == static_cast<ssize_t>(part);
      if (serves_ == Serves::kNothing) return absl::OkStatus();
      if (!is_taken) return absl::InvalidArgumentError("broken HTTP/2");
      if (read_ == received_.size()) break;
    }
    if (serves_ != Serves::kCall) return absl::OkStatus();
    HandOver();
    return ReceiveOfCall(std::string_view(std::exchange(received_, {})).substr(read_));
  }

  // From nghttp2 to what goes on with the call.
  void HandOver() {
    SayWhatNghttp2Says();
    frames_.emplace(
        CallFrames::Terms{stream_, nghttp2_session_get_remote_window_size(nghttp2_),
                          nghttp2_session_get_stream_remote_window_size(nghttp2_, stream_),
                          nghttp2_session_get_remote_settings(nghttp2_, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE),
                          kWindowBytes},
        static_cast<CallFrames::Sink*>(this));
    nghttp2_session_del(std::exchange(nghttp2_, nullptr));
    if (ends_at_once_) Ended();
  }

  void SayWhatNghttp2Says() {
    const uint8_t* bytes = nullptr;
    for (ssize_t size; (size = nghttp2_session_mem_send(nghttp2_, &bytes)) > 0;) {
      first_said_.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    }
  }

  absl::Status ReceiveOfCall(std::string_view bytes) {
    frames_->Receive(bytes);
    if (frames_->broken()) closed_ = true;  // which it says
    return absl::OkStatus();
  }

  void Ended() override {
    if (finished_ || call_ == nullptr) return;
    Finish(message_.empty() ? call_->Ended() : absl::InvalidArgumentError("the call ends in the middle of a message"));
  }
  void GivenUp() override { closed_ = true; }

  void Data(std::string_view bytes) override {
    if (call_ == nullptr) return;
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

  // A frame of the call. False: there is none now.
  bool SayNext() {
    if (outgoing_.empty() && !finished_ && std::exchange(may_have_message_, false)) {
      std::string message;
      const absl::StatusOr<bool> is_one = call_->Next(&message);
      if (!is_one.ok()) Finish(is_one.status());
      if (is_one.ok() && *is_one) {
        may_have_message_ = true;
        outgoing_ = MessageHead(message.size()) + message;
      }
    }
    if (outgoing_.empty() && finished_) {
      SayStatus();
      return false;
    }
    const size_t part = std::min(outgoing_.size() - outgoing_at_, frames_->room());
    if (part == 0) return false;
    frames_->Send(std::string_view(outgoing_).substr(outgoing_at_, part));
    outgoing_at_ += part;
    if (outgoing_at_ == outgoing_.size()) {
      std::string().swap(outgoing_);
      outgoing_at_ = 0;
    }
    return true;
  }

  void SayStatus() {
    std::vector<nghttp2_nv> fields;
    const StatusFields status(status_);
    status.AddTo(&fields);
    std::vector<CallFrames::Field> said;
    for (const nghttp2_nv& field : fields) {
      said.push_back({{reinterpret_cast<const char*>(field.name), field.namelen},
                      {reinterpret_cast<const char*>(field.value), field.valuelen}});
    }
    frames_->End(said);
    closed_ = true;
  }

  const Open open_;
  HalfSaid& half_said_;
  nghttp2_session* nghttp2_ = nullptr;  // until the call has begun
  Serves serves_ = Serves::kUnknown;
  std::string first_said_;            // by nghttp2
  std::string received_;              // while it is unknown what is served
  size_t read_ = 0;                   // of it, by nghttp2
  size_t frame_end_ = kPreface;       // of the frame there that is being read; first a client's preface, RFC 9113 §3.4
  std::optional<CallFrames> frames_;  // once the call has begun
  std::string path_;
  bool is_only_ = false;
  int32_t stream_ = 0;  // the call's; 0: there is none yet
  std::unique_ptr<StreamCall> call_;
  bool ends_at_once_ = false;  // the client says nothing but the call's head
  bool may_have_message_ = true;
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
