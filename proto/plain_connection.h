// One connection of a client that speaks gRPC in plain text: bytes and time in, calls out; answers in, bytes out.
//
// Design:
// 1. Whoever reaches the port is a stranger, so all that a connection can hold or cause is bounded before nghttp2 sees it:
//    the heads of frames are read first, for the bytes of a header block in all its fragments and for the number of
//    frames. nghttp2's own memory is counted by its allocator.
// 2. No limit waits for the client to acknowledge SETTINGS: gRPC's clients send their first call right behind their
//    preface, and whoever never acknowledges gets the same limits as whoever does, for
//    kPlainSettleMs.
// 3. A frame (and each KiB of a header block) costs one of a budget that grows with time and with each answer that the client has taken: clients that
//    make calls in a loop never meet it; floods of SETTINGS, PING, RST_STREAM, WINDOW_UPDATE, PRIORITY or empty DATA do.
// 4. What a call is: one message, then the end of the request (unary and server-streaming calls are the same here).
//    Answers are any number of messages and a status.
//
// Not thread safe. No I/O, no clock: `now_ns` never runs backwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace taskd::proto {

// Limits of one connection in plain text.
inline constexpr size_t kPlainStreams = 8;              // calls at a time; further ones are refused, clients try again
inline constexpr size_t kPlainHeaderBytes = 16 << 10;   // of a header block: as sent, and once it is decoded
inline constexpr size_t kPlainHeaderFields = 64;        // of a header block
inline constexpr size_t kPlainMessageBytes = 8 << 10;   // of a request
inline constexpr size_t kPlainRequestBytes = 16 << 10;  // of requests that have not ended, all together
inline constexpr size_t kPlainUnsentBytes = 64 << 10;   // of answers that the client has not taken
inline constexpr size_t kPlainParserBytes = 192 << 10;  // that nghttp2 holds
inline constexpr int64_t kPlainFrames = 1'000;          // at once
inline constexpr int64_t kPlainFramesPerSecond = 100;   // afterwards
inline constexpr int64_t kPlainFramesPerAnswer = 10;    // besides: for each message and status that was sent
inline constexpr int64_t kPlainSettleMs = 10'000;       // to the acknowledgement of SETTINGS
inline constexpr int64_t kPlainRequestMs = 10'000;      // to the end of a request
inline constexpr int64_t kPlainIdleMs = 30'000;         // without a call, and since the last answer
inline constexpr int64_t kPlainKeepaliveMs = 10'000;    // of silence to a PING, and from there to the end
inline constexpr int64_t kPlainStallMs = 20'000;        // for a client that takes nothing of what is there for it
inline constexpr int64_t kPlainLingerMs = 1'000;        // from our farewell to the end

class PlainConnection {
 public:
  // What is done with calls. Called from Receive and Tick. May call Write and Finish, no other function of the
  // connection.
  class Calls {
   public:
    // Not OK: the answer to a call of this path, which is not begun.
    virtual absl::Status Check(std::string_view path) = 0;
    // A whole request.
    virtual void Begin(int32_t stream, const std::string& path, std::string message) = 0;
    // After Begin, once: nothing more can be sent on it, whether it was finished, given up by the client, or late.
    virtual void Over(int32_t stream) = 0;

   protected:
    ~Calls() = default;
  };

  PlainConnection(Calls* calls, int64_t now_ns);
  ~PlainConnection();  // without Over
  PlainConnection(const PlainConnection&) = delete;
  PlainConnection& operator=(const PlainConnection&) = delete;

  // What the client sent. Anything that is closed() takes nothing more.
  void Receive(std::string_view bytes, int64_t now_ns);
  // What is due by now. To be called at due_ns(), which every other call may move.
  void Tick(int64_t now_ns);
  int64_t due_ns() const;

  // A message of an answer; ignored where the call is over or finished. Beyond kPlainUnsentBytes the call ends
  // instead, with RESOURCE_EXHAUSTED.
  void Write(int32_t stream, std::string message, int64_t now_ns);
  // The status of an answer, behind its messages.
  void Finish(int32_t stream, const absl::Status& status);
  // Ends the calls that are under way with `status`, and takes no new ones.
  void Shut(const absl::Status& status, int64_t now_ns);

  // Bytes for the client; empty: none for now. Valid until another function is called.
  std::string_view Output();
  void Sent(size_t bytes, int64_t now_ns);  // that many of Output()

  // The client is to be disconnected once Output() is empty or cannot be written.
  bool closed() const;
  const char* why_closed() const;  // for the log
  // Memory of what is parsed, asked and answered, about.
  size_t held_bytes() const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

// grpc-message's form: everything but printable ASCII, and '%', as %XX.
std::string PercentEncode(std::string_view text);
// grpc-timeout's value in nanoseconds, at most 10 years; -1: it is none.
int64_t ParseGrpcTimeout(std::string_view text);

}  // namespace taskd::proto
