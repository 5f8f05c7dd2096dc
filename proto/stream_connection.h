// A connection of one call: a bidirectional stream of gRPC's whose client has said that it makes no other there. Bytes
// and messages in, bytes out.
//
// A job has one such connection for each node, and little goes over each: what gRPC's server does for it, a pair of
// sockets from where TLS ends and threads that wake each other, costs several times what is done with a message.
// nghttp2 speaks HTTP/2 here as it does for strangers (plain_connection.h); but the client has proven itself, and only
// what it may make the server keep is bounded.
//
// Not thread safe. No I/O, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd::proto {

// Metadata by which a client says that its call is the only one of its connection, whatever the value.
inline constexpr char kOnlyCall[] = "taskd-only-call";

// What is done with the call. Destroyed when it is over: the client has gone or has given it up, or its status is known.
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  // A whole message. Not OK: the call ends with that.
  virtual absl::Status Take(std::string_view message) = 0;
  // The client says nothing more; the call ends with this.
  virtual absl::Status Ended() = 0;
  // Sets the next message for the client. False: there is none now. Not OK: the call ends with that.
  virtual absl::StatusOr<bool> Next(std::string* message) = 0;
};

class StreamConnection {
 public:
  static constexpr size_t kMostMessageBytes = size_t{4} << 20;
  static constexpr size_t kMostBytesBeforeCall = size_t{64} << 10;
  static constexpr int32_t kWindowBytes = 1 << 20;

  // The call of a path; null: it is not served so.
  using Open = std::function<std::unique_ptr<StreamCall>(std::string_view path)>;
  enum class Serves : uint8_t {
    kUnknown,  // there was no call yet
    kCall,
    kNothing,  // the first call is another, or did not say that it is the only one: TakeReceived() is for another server
  };

  // What all connections together have of messages that have not come to their end.
  struct HalfSaid {
    static constexpr size_t kMostBytes = size_t{256} << 20;
    size_t bytes = 0;
  };

  // `half_said` outlives this.
  StreamConnection(Open open, HalfSaid* half_said);
  ~StreamConnection();
  StreamConnection(const StreamConnection&) = delete;
  StreamConnection& operator=(const StreamConnection&) = delete;

  // What the client sent. Not OK: it is broken HTTP/2.
  absl::Status Receive(std::string_view bytes);
  Serves serves() const;
  // All that came; another server goes on with it. It must not see the acknowledgement of the SETTINGS that this
  // side has sent, which may still be to come (SettingsAck).
  std::string TakeReceived();

  // The call may have a message now.
  void Ready();
  // Ends the call.
  void Finish(const absl::Status& status);
  bool has_message() const;  // the client has sent one

  // Appends bytes for the client, until `to` has `most` or more.
  void Output(size_t most, std::string& to);
  // The call is over, and all is said.
  bool over() const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

// Leaves the first acknowledgement of SETTINGS out of what a client sends.
class SettingsAck {
 public:
  // There is none to leave out.
  static SettingsAck None() {
    SettingsAck none;
    none.is_out_ = true;
    return none;
  }
  void Pass(std::string_view bytes, std::string& to);
  bool is_out() const { return is_out_; }

 private:
  bool is_out_ = false;
  size_t skip_ = 24;               // to the next frame's head; first a client's preface, RFC 9113 §3.4
  std::array<char, 9> head_ = {};  // RFC 9113 §4.1
  size_t head_size_ = 0;
};

}  // namespace taskd::proto
