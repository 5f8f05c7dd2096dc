// A client of gRPC's calls for tests: nghttp2's other side, and frames by hand for what it would not send.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taskd::proto {

inline std::string GrpcMessage(std::string_view message, char compressed = 0) {
  const auto size = static_cast<uint32_t>(message.size());
  return std::string({compressed, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
                      static_cast<char>(size >> 8), static_cast<char>(size)})
      .append(message);
}

inline std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  auto byte = [](size_t value, int shift) { return static_cast<char>(value >> shift & 0xff); };
  return std::string({byte(payload.size(), 16), byte(payload.size(), 8), byte(payload.size(), 0),
                      static_cast<char>(type), static_cast<char>(flags), byte(stream, 24), byte(stream, 16),
                      byte(stream, 8), byte(stream, 0)})
      .append(payload);
}

// A field as HPACK's literal without a name in any table (RFC 7541 §6.2.2). Both parts shorter than 127 bytes.
inline std::string HpackLiteral(std::string_view name, std::string_view value) {
  return std::string({0, static_cast<char>(name.size())})
      .append(name)
      .append(1, static_cast<char>(value.size()))
      .append(value);
}

inline std::string GrpcHead(std::string_view path) {
  return HpackLiteral(":method", "POST") + HpackLiteral(":scheme", "http") + HpackLiteral(":path", path) +
         HpackLiteral(":authority", "x") + HpackLiteral("content-type", "application/grpc") +
         HpackLiteral("te", "trailers");
}

class TestHttp2Client {
 public:
  struct Answer {
    std::map<std::string, std::string> fields;  // of head and trailers
    std::string body;
    bool ended = false;  // by its last frame
    bool closed = false;
    uint32_t error = 0;

    std::vector<std::string> messages() const {
      std::vector<std::string> all;
      for (size_t at = 0; at + 5 <= body.size();) {
        const size_t size = size_t{static_cast<unsigned char>(body[at + 1])} << 24 |
                            size_t{static_cast<unsigned char>(body[at + 2])} << 16 |
                            size_t{static_cast<unsigned char>(body[at + 3])} << 8 |
                            static_cast<unsigned char>(body[at + 4]);
        all.push_back(body.substr(at + 5, size));
        at += 5 + size;
      }
      return all;
    }
    std::string status() const {
      const auto found = fields.find("grpc-status");
      return found == fields.end() ? "" : found->second;
    }
    std::string text() const {
      const auto found = fields.find("grpc-message");
      return found == fields.end() ? "" : found->second;
    }
  };

  // `window`: how many bytes of an answer it takes before it grants more, which it does by itself.
  explicit TestHttp2Client(uint32_t window = 65535, bool grants = true) {
    nghttp2_session_callbacks* callbacks;
    nghttp2_option* option;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_option_new(&option);
    nghttp2_option_set_no_auto_window_update(option, grants ? 0 : 1);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](auto*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size, const uint8_t* value,
                      size_t value_size, uint8_t, void* self) {
          static_cast<TestHttp2Client*>(self)
              ->answers[frame->hd.stream_id]
              .fields[std::string(reinterpret_cast<const char*>(name), name_size)] =
              std::string(reinterpret_cast<const char*>(value), value_size);
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](auto*, uint8_t, int32_t stream, const uint8_t* data, size_t size, void* self) {
          static_cast<TestHttp2Client*>(self)->answers[stream].body.append(reinterpret_cast<const char*>(data), size);
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, [](auto*, const nghttp2_frame* frame, void* self) {
      auto* client = static_cast<TestHttp2Client*>(self);
      if ((frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
          (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        client->answers[frame->hd.stream_id].ended = true;
      }
      if (frame->hd.type == NGHTTP2_GOAWAY) client->goaway = static_cast<int64_t>(frame->goaway.error_code);
      if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) ++client->pings;
      if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) ++client->pongs;
      return 0;
    });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](auto*, int32_t stream, uint32_t error, void* self) {
          Answer& answer = static_cast<TestHttp2Client*>(self)->answers[stream];
          answer.closed = true;
          answer.error = error;
          return 0;
        });
    nghttp2_session_client_new2(&session_, callbacks, this, option);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    const nghttp2_settings_entry entry = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &entry, 1);
    if (window > 65535) {
      nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, static_cast<int32_t>(window));
    }
  }
  ~TestHttp2Client() { nghttp2_session_del(session_); }
  TestHttp2Client(const TestHttp2Client&) = delete;
  TestHttp2Client& operator=(const TestHttp2Client&) = delete;

  using Fields = std::vector<std::pair<std::string, std::string>>;
  // Begins a call; `body` is what the request has in all, or before it goes on for ever (`ends`).
  int32_t Call(const std::string& path, const std::string& body, const Fields& more = {},
               const std::string& type = "application/grpc", const std::string& method = "POST", bool ends = true) {
    Fields fields = {{":method", method},         {":scheme", "http"},    {":path", path},
                     {":authority", "somewhere"}, {"content-type", type}, {"te", "trailers"}};
    fields.insert(fields.end(), more.begin(), more.end());
    std::vector<nghttp2_nv> pairs;
    for (auto& [name, value] : fields) {
      pairs.push_back({reinterpret_cast<uint8_t*>(name.data()), reinterpret_cast<uint8_t*>(value.data()), name.size(),
                       value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    nghttp2_data_provider provider = {};
    provider.read_callback = [](auto*, int32_t stream, uint8_t* to, size_t size, uint32_t* flags, auto*,
                                void* self) -> ssize_t {
      auto& [left, ends] = static_cast<TestHttp2Client*>(self)->bodies_[stream];
      const size_t part = size < left.size() ? size : left.size();
      left.copy(reinterpret_cast<char*>(to), part);
      left.erase(0, part);
      if (left.empty() && !ends && part == 0) return NGHTTP2_ERR_DEFERRED;
      if (left.empty() && ends) *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(part);
    };
    const int32_t stream = nghttp2_submit_request(session_, nullptr, pairs.data(), pairs.size(), &provider, nullptr);
    bodies_[stream] = {body, ends};
    return stream;
  }
  // More of a body that goes on.
  void Say(int32_t stream, const std::string& body, bool ends = false) {
    bodies_[stream].first += body;
    bodies_[stream].second = ends;
    nghttp2_session_resume_data(session_, stream);
  }
  void Cancel(int32_t stream) { nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL); }
  void Ping() { nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr); }

  std::string Output() {
    std::string output;
    const uint8_t* data;
    for (ssize_t size; (size = nghttp2_session_mem_send(session_, &data)) > 0;) {
      output.append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
    }
    return output;
  }
  void Receive(std::string_view bytes) {
    nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }

  std::map<int32_t, Answer> answers;  // by stream
  int64_t goaway = -1;                // the error code of the server's GOAWAY
  int pings = 0, pongs = 0;

 private:
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, std::pair<std::string, bool>> bodies_;
};

}  // namespace taskd::proto
