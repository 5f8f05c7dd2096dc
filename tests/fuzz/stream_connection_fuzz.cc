// A connection of one call, from its first byte: a call is over once, what is half said is given back, and the parts that
// bytes come in make no difference to what is taken, nor to what another server gets.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/stream_connection.h"
#include "proto/test_http2_client.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::proto::SettingsAck;
using taskd::proto::StreamConnection;

struct Seen {
  std::vector<std::string> taken;
  int calls = 0, over = 0;
  std::string passed;
  bool operator==(const Seen&) const = default;
};

class Call final : public taskd::proto::StreamCall {
 public:
  explicit Call(Seen* seen) : seen_(*seen) { ++seen_.calls; }
  ~Call() override { ++seen_.over; }
  absl::Status Take(std::string_view message) override {
    FUZZ_CHECK(message.size() <= StreamConnection::kMostMessageBytes);
    seen_.taken.emplace_back(message);
    if (message == "end") return absl::AbortedError("\xff%");
    echo_ = message;
    return absl::OkStatus();
  }
  absl::Status Ended() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Next(std::string* message) override {
    message->swap(echo_);
    echo_.clear();
    return !message->empty();
  }

 private:
  Seen& seen_;
  std::string echo_;
};

Seen Run(std::string_view bytes, size_t part) {
  Seen seen;
  StreamConnection::HalfSaid half_said;
  {
    StreamConnection server([&](auto) { return std::make_unique<Call>(&seen); }, &half_said);
    SettingsAck ack;
    bool passes = false;
    for (size_t at = 0; at < bytes.size() && !server.over(); at += part) {
      const std::string_view some = bytes.substr(at, part);
      if (passes) {
        ack.Pass(some, seen.passed);
        continue;
      }
      if (!server.Receive(some).ok()) break;
      passes = server.serves() == StreamConnection::Serves::kNothing;
      if (passes) ack.Pass(server.TakeReceived(), seen.passed);
      std::string output;
      server.Ready();
      server.Output(1 << 16, output);
    }
    FUZZ_CHECK(half_said.bytes <= bytes.size());
  }
  FUZZ_CHECK(half_said.bytes == 0);
  FUZZ_CHECK(seen.calls <= 1 && seen.over == seen.calls);
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes = std::string(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN)
                                .append(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Seen whole = Run(bytes, bytes.size()), parts = Run(bytes, 1 + data[0] % 64);
  // Where it breaks, bytes before that may have been taken or not.
  const size_t both = std::min(whole.taken.size(), parts.taken.size());
  FUZZ_CHECK(std::equal(whole.taken.begin(), whole.taken.begin() + static_cast<ptrdiff_t>(both), parts.taken.begin()));
  if (!whole.passed.empty() && !parts.passed.empty()) FUZZ_CHECK(whole.passed == parts.passed);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  using taskd::proto::GrpcHead, taskd::proto::GrpcMessage, taskd::proto::HpackLiteral;
  auto frame = [](uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
    return taskd::proto::Http2Frame(type, flags, stream, payload);
  };
  const std::string settings = frame(NGHTTP2_SETTINGS, 0, 0, "");
  const std::string ack = frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");
  const std::string other = GrpcHead("/e"), head = other + HpackLiteral(taskd::proto::kOnlyCall, "1");
  const std::string message = GrpcMessage("hello"), end = GrpcMessage("end"), huge("\0\xff\0\0\0", 5);
  auto head_of = [&](uint32_t stream, const std::string& fields) {
    return frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, stream, fields);
  };
  auto data = [&](std::string_view bytes, uint8_t flags = 0) { return frame(NGHTTP2_DATA, flags, 1, bytes); };
  const std::string call = settings + ack + head_of(1, head);
  std::vector<std::string> seeds = {
      call + data(message + message) + data("", NGHTTP2_FLAG_END_STREAM),
      call + data(message.substr(0, 4)) + data(message.substr(4) + end),
      call + data(huge),
      call + data(GrpcMessage("x", 1)),
      call + head_of(3, head) + frame(NGHTTP2_RST_STREAM, 0, 1, std::string("\0\0\0\x8", 4)),
      settings + head_of(1, other) + ack + data(message, NGHTTP2_FLAG_END_STREAM),
      settings + frame(NGHTTP2_PING, 0, 0, "12345678") + ack,
  };
  for (std::string& seed : seeds) {
    seed.insert(0, 1, '\x10');
  }
  return seeds;
}
