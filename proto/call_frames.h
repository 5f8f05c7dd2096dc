// HTTP/2 (RFC 9113) of a connection that has nothing but one call, once the call has begun: what the server still has to
// understand and to say, in a few hundred bytes of memory. A session of nghttp2's keeps 26 KiB, of which 16 are room for
// the largest frame, and a large job has thousands of such connections.
//
// No header block is read any more: what the client could still say in one is that its side of the call ends. Not thread
// safe. No I/O, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taskd::proto {

class CallFrames {
 public:
  // What both sides have granted and said until the call had begun.
  struct Terms {
    int32_t stream = 0;
    int64_t connection_window = 0;  // that may be sent
    int64_t stream_window = 0;
    int64_t initial_window = 0;  // the client's setting, of which the stream's is what was granted
    int64_t own_window = 0;      // that the client may send, on the connection as on the stream
  };
  // What comes of the call, in its order.
  class Sink {
   public:
    virtual void Data(std::string_view bytes) = 0;
    virtual void Ended() = 0;    // the client says nothing more
    virtual void GivenUp() = 0;  // nor does it hear anything

   protected:
    ~Sink() = default;
  };

  // What is waiting to be said, at most: who asks for more and does not read it breaks the rules.
  static constexpr size_t kMostWaiting = size_t{64} << 10;

  CallFrames(const Terms& terms, Sink* sink) : terms_(terms), sink_(*sink) {}

  // What the client sent. Where it breaks the rules that is the last thing that is said, and nothing of it is read any
  // more.
  void Receive(std::string_view bytes);
  bool broken() const { return broken_; }

  // How many bytes of data the client takes now, in one frame. It has to take frames of 16 KiB, whatever it says.
  size_t room() const;
  // At most room().
  void Send(std::string_view data) {
    Append(0, 0, terms_.stream, data);
    TakeFromWindows(data.size());
  }
  // The call's end, as it is said with fields; and that there is no other call.
  struct Field {
    std::string_view name, value;
  };
  void End(const std::vector<Field>& fields);

  // What is to be sent next.
  std::string TakeWaiting() { return std::exchange(waiting_, {}); }
  bool is_waiting() const { return !waiting_.empty(); }

 private:
  struct Head {
    size_t size = 0;
    uint8_t type = 0, flags = 0;
    int32_t stream = 0;
  };

  void Append(uint8_t type, uint8_t flags, int32_t stream, std::string_view payload);
  void AppendNumber(uint8_t type, int32_t stream, uint32_t number);
  void TakeFromWindows(size_t size);
  void Break(uint32_t error);
  void BeginFrame();
  size_t TakeData(std::string_view bytes);
  void EndFrame();
  void TakeSettings();
  void TakeWindowUpdate();
  void Grant(size_t size);
  uint32_t NumberAt(size_t at) const;

  Terms terms_;
  Sink& sink_;
  std::string waiting_;
  std::array<uint8_t, 9> head_bytes_{};
  size_t head_size_ = 0;
  Head head_;
  size_t left_ = 0;      // of the frame under way
  size_t padding_ = 0;   // of them, at the end, what is none of the data
  std::string payload_;  // of the frame under way, where it is looked at as a whole
  int64_t taken_ = 0;    // bytes of data for which nothing was granted yet, on the connection
  int64_t taken_of_call_ = 0;
  bool ended_ = false;  // the client's side
  bool given_up_ = false;
  bool broken_ = false;
};

}  // namespace taskd::proto
