// A connection in plain text, from its first byte: what it holds is bounded, a call that began is over once, and the parts
// that bytes come in make no difference to what is called.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/plain_connection.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::proto::PlainConnection;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHeldAtMost = 2048 + taskd::proto::kPlainParserBytes + taskd::proto::kPlainRequestBytes +
                               taskd::proto::kPlainUnsentBytes + (size_t{64} << 10);

class Run : public PlainConnection::Calls {
 public:
  // `part`: of the bytes that come in, and of those that go out.
  Run(std::string_view bytes, size_t part) : server_(this, now_ns_) {
    for (size_t at = 0; at < bytes.size() && !server_.closed(); at += part) {
      server_.Receive(bytes.substr(at, part), now_ns_);
      Send(part);
    }
    for (int i = 0; i < 40 && !server_.closed(); ++i) {
      now_ns_ = std::max(now_ns_, server_.due_ns());
      server_.Tick(now_ns_);
      Send(part);
    }
    FUZZ_CHECK(server_.closed());  // who says nothing more is gone some day
  }

  absl::Status Check(std::string_view path) override {
    return path.size() < 20 ? absl::OkStatus() : absl::UnauthenticatedError(std::string(path));
  }
  void Begin(int32_t stream, const std::string& path, std::string message) override {
    FUZZ_CHECK(message.size() <= taskd::proto::kPlainMessageBytes);
    FUZZ_CHECK(running_.insert({stream, path}).second);
    FUZZ_CHECK(running_.size() <= taskd::proto::kPlainStreams);
    calls.emplace_back(path, message);
    server_.Write(stream, message, now_ns_);
    if (path != "/w") server_.Finish(stream, absl::OkStatus());
  }
  void Over(int32_t stream) override { FUZZ_CHECK(running_.erase(stream) == 1); }

  std::vector<std::pair<std::string, std::string>> calls;

 private:
  void Send(size_t part) {
    FUZZ_CHECK(server_.held_bytes() <= kHeldAtMost);
    for (std::string_view output = server_.Output(); !output.empty(); output = server_.Output()) {
      server_.Sent(std::min(part, output.size()), now_ns_);
    }
  }

  int64_t now_ns_ = 1;
  std::map<int32_t, std::string> running_;
  PlainConnection server_;
};

std::string Frame(char type, char flags, char stream, std::string_view payload) {
  return std::string({0, static_cast<char>(payload.size() >> 8), static_cast<char>(payload.size()), type, flags, 0, 0,
                      0, stream})
      .append(payload);
}

std::string Field(std::string_view name, std::string_view value) {
  return std::string({0x40, static_cast<char>(name.size())})
      .append(name)
      .append(1, static_cast<char>(value.size()))
      .append(value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes = std::string(kPreface).append(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Run whole(bytes, bytes.size()), parts(bytes, 1 + data[0] % 64);
  // A call that is given up behind its own bytes may be begun or not; what was begun is the same up to there.
  const size_t both = std::min(whole.calls.size(), parts.calls.size());
  FUZZ_CHECK(std::equal(whole.calls.begin(), whole.calls.begin() + static_cast<ptrdiff_t>(both), parts.calls.begin()));
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const std::string settings = Frame(4, 0, 0, ""), ack = Frame(4, 1, 0, "");
  auto head_of = [](std::string_view path) {
    return std::string("\x83\x86", 2) + Field(":path", path) + Field(":authority", "x") +
           Field("content-type", "application/grpc") + Field("te", "trailers") + Field("grpc-timeout", "5S");
  };
  const std::string head = head_of("/e"), message("\0\0\0\0\5hello", 10);
  // The second call's fields are the first one's, by their places in HPACK's table.
  const std::string again = std::string("\x83\x86", 2) + Field(":path", "/w") + std::string("\xc2\xc1\xc0", 3);
  const std::string call = Frame(1, 4, 1, head) + Frame(0, 1, 1, message);
  const std::string watch = Frame(1, 4, 1, head_of("/w")) + Frame(0, 1, 1, message);
  const std::string both = call + Frame(1, 4, 3, again) + Frame(0, 1, 3, message);
  const std::string fragments = Frame(1, 0, 1, head.substr(0, 10)) + Frame(9, 4, 1, head.substr(10)) +
                                Frame(0, 0, 1, "") +
                                Frame(0, 9, 1, std::string("\2", 1) + message + std::string(2, '\0'));
  const std::string others = Frame(6, 0, 0, "12345678") + Frame(8, 0, 0, std::string("\0\0\1\0", 4)) +
                             Frame(2, 0, 5, std::string("\0\0\0\1\1", 5)) +
                             Frame(3, 0, 1, std::string("\0\0\0\x8", 4)) + Frame(7, 0, 0, std::string(8, '\0')) +
                             Frame(77, 0, 0, "what");
  std::vector<std::string> seeds;
  for (const std::string& rest : {call, watch, both, fragments, std::string(call).append(others),
                                  std::string(watch).append(others).append(ack)}) {
    seeds.push_back(std::string("\x10").append(settings).append(rest).append(ack));
  }
  return seeds;
}
