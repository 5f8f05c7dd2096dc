#include "proto/grpc_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/job_secret.h"
#include "common/log.h"
#include "common/testing/deadline.h"
#include "gtest/gtest.h"
#include "proto/test_http2_client.h"
#include "spdlog/sinks/base_sink.h"

namespace taskd::proto {
namespace {

using Speaks = GrpcListener::Speaks;

// A client of OpenSSL writes to connections that the server has closed.
[[maybe_unused]] const auto kOfNoInterest = std::signal(SIGPIPE, SIG_IGN);

std::shared_ptr<const TlsContext> OfJob() {
  static const auto tls = TlsContext::GrpcServer(IssueCertificates("of the job").value(), "").value();
  return tls;
}

// A listener that keeps what it is given, until Close().
class Door {
 public:
  explicit Door(GrpcListener::Limits limits = {}, GrpcListener::Open open = nullptr) {
    auto take = [this](Speaks speaks, UniqueFd fd) {
      std::lock_guard lock(mutex_);
      taken_.emplace_back(speaks, std::move(fd));
      changed_.notify_all();
    };
    auto listener = GrpcListener::Listen({"127.0.0.1", 0}, limits, OfJob(), take, {}, std::move(open));
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  ~Door() {
    taken_.clear();
    listener_.reset();
  }

  UniqueFd Dial() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  UniqueFd Dial(const std::string& says) const {
    UniqueFd fd = Dial();
    EXPECT_EQ(send(fd.get(), says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
    return fd;
  }

  // False: not within the patience of a test.
  bool WaitTaken(size_t count) {
    std::unique_lock lock(mutex_);
    return testing::WaitFor(changed_, lock, [&] { return taken_.size() >= count; });
  }
  int port() const { return listener_->port(); }
  size_t taken() {
    std::lock_guard lock(mutex_);
    return taken_.size();
  }
  std::pair<Speaks, std::string> Take(size_t index) {
    std::lock_guard lock(mutex_);
    char bytes[64];
    const ssize_t size = recv(taken_[index].second.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return {taken_[index].first, std::string(bytes, size > 0 ? static_cast<size_t>(size) : 0)};
  }
  UniqueFd TakeFd(size_t index) {
    std::lock_guard lock(mutex_);
    return std::move(taken_[index].second);
  }
  GrpcListener& listener() { return *listener_; }
  void Close(size_t index) {
    std::lock_guard lock(mutex_);
    taken_[index].second.reset();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Speaks, UniqueFd>> taken_;
  std::unique_ptr<GrpcListener> listener_;
};

// The other side has closed it.
bool WaitClosed(const UniqueFd& fd) {
  pollfd one{fd.get(), POLLIN, 0};
  char byte;
  return poll(&one, 1, testing::kHangLimitMs) == 1 && recv(fd.get(), &byte, 1, 0) <= 0;
}

// What is logged while it lives.
class LogLines {
 public:
  LogLines() : sink_(std::make_shared<Sink>()) { spdlog::default_logger()->sinks().push_back(sink_); }
  ~LogLines() { spdlog::default_logger()->sinks().pop_back(); }

  bool WaitFor(const std::string& text) {
    std::unique_lock lock(sink_->mutex);
    return testing::WaitFor(sink_->changed, lock, [&] { return CountLocked(text) > 0; });
  }
  int Count(const std::string& text) {
    std::lock_guard lock(sink_->mutex);
    return CountLocked(text);
  }

 private:
  struct Sink : spdlog::sinks::base_sink<std::mutex> {
    void sink_it_(const spdlog::details::log_msg& message) override {
      std::lock_guard lock(mutex);
      lines.emplace_back(message.payload.data(), message.payload.size());
      changed.notify_all();
    }
    void flush_() override {}

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;
  };
  int CountLocked(const std::string& text) const {
    return static_cast<int>(std::count_if(sink_->lines.begin(), sink_->lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    }));
  }

  const std::shared_ptr<Sink> sink_;
};

const std::string kPlain("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

// Somebody who speaks TLS, as OpenSSL does it.
class TlsClient {
 public:
  struct As {
    std::string secret = "of the job";
    bool shows = true;  // a certificate
    std::string protocols = std::string("\x02h2", 3);
    int max_version = TLS1_3_VERSION;
  };
  TlsClient(const Door& door, const As& as) : fd_(door.Dial()), context_(SSL_CTX_new(TLS_client_method())) {
    const JobCertificates pem = IssueCertificates(as.secret).value();
    BIO* certificate = BIO_new_mem_buf(pem.certificate.data(), static_cast<int>(pem.certificate.size()));
    BIO* key = BIO_new_mem_buf(pem.key.data(), static_cast<int>(pem.key.size()));
    X509* own = PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
    EVP_PKEY* own_key = PEM_read_bio_PrivateKey(key, nullptr, nullptr, nullptr);
    if (as.shows) {
      SSL_CTX_use_certificate(context_, own);
      SSL_CTX_use_PrivateKey(context_, own_key);
    }
    X509_free(own);
    EVP_PKEY_free(own_key);
    BIO_free(certificate);
    BIO_free(key);
    SSL_CTX_set_max_proto_version(context_, as.max_version);
    ssl_ = SSL_new(context_);
    if (!as.protocols.empty()) {
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(as.protocols.data()),
                          static_cast<unsigned>(as.protocols.size()));
    }
    SSL_set_fd(ssl_, fd_.get());
  }
  explicit TlsClient(const Door& door) : TlsClient(door, As{}) {}
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool Connect() { return SSL_connect(ssl_) == 1; }
  // In TLS 1.3 the client is done first: what the server thinks of its certificate comes with the first read.
  bool IsLetIn(Door& door, size_t taken) { return Connect() && door.WaitTaken(taken); }
  bool IsRefused() {
    char byte;
    return !Connect() || SSL_read(ssl_, &byte, 1) <= 0;
  }
  bool Write(std::string_view text) { return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) > 0; }
  // Up to `size` bytes; fewer where the server has ended it in order.
  std::string Read(size_t size) {
    std::string text(size, '\0');
    size_t count = 0;
    for (int got; count < size && (got = SSL_read(ssl_, text.data() + count, static_cast<int>(size - count))) > 0;) {
      count += static_cast<size_t>(got);
    }
    text.resize(count);
    return text;
  }
  // What there is, at least a byte; empty: the server has ended it.
  std::string ReadSome() {
    std::string text(size_t{64} << 10, '\0');
    const int got = SSL_read(ssl_, text.data(), static_cast<int>(text.size()));
    text.resize(static_cast<size_t>(std::max(got, 0)));
    return text;
  }
  bool HasEndedInOrder() {
    char byte;
    ERR_clear_error();  // of other clients
    return SSL_get_error(ssl_, SSL_read(ssl_, &byte, 1)) == SSL_ERROR_ZERO_RETURN;
  }
  void End() {
    SSL_shutdown(ssl_);
    shutdown(fd_.get(), SHUT_WR);
  }
  void Break() {
    const linger now{1, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    fd_.reset();
  }
  // What it says first, as bytes.
  static std::string Hello() {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL* ssl = SSL_new(context);
    BIO* out = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
    SSL_connect(ssl);
    char bytes[4096];
    const int size = BIO_read(out, bytes, sizeof(bytes));
    SSL_free(ssl);
    SSL_CTX_free(context);
    return {bytes, static_cast<size_t>(size)};
  }

 private:
  UniqueFd fd_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
};

// All that comes, until `size` bytes have or the other side has ended it.
std::string ReadAll(int fd, size_t size) {
  std::string text;
  char bytes[4096];
  while (text.size() < size) {
    pollfd one{fd, POLLIN, 0};
    if (poll(&one, 1, testing::kHangLimitMs) != 1) break;
    const ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
    if (got <= 0) break;
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    pollfd one{fd, POLLOUT, 0};
    if (poll(&one, 1, testing::kHangLimitMs) != 1) return;
    const ssize_t sent = send(fd, text.data(), std::min<size_t>(text.size(), 10'000), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return;
    if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string Bytes(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

TEST(GrpcListenerTest, HandsOverByTheFirstByte) {
  Door door;
  TlsClient tls(door);
  ASSERT_TRUE(tls.IsLetIn(door, 1));
  UniqueFd plain = door.Dial(kPlain);
  ASSERT_TRUE(door.WaitTaken(2));
  EXPECT_EQ(door.Take(1), std::pair(Speaks::kPlainOwn, kPlain)) << "nothing of it was read";
  UniqueFd server = door.TakeFd(0);
  ASSERT_TRUE(tls.Write("hello"));
  EXPECT_EQ(ReadAll(server.get(), 5), "hello");
  WriteAll(server.get(), "and you");
  EXPECT_EQ(tls.Read(7), "and you");
}

constexpr char kPath[] = "/test.Service/Connect";

// Says `count` messages of `size` bytes once it is asked.
class Talker final : public StreamCall {
 public:
  Talker(size_t count, size_t size, std::function<void()> ready, std::promise<void>* over)
      : left_(count), size_(size), ready_(std::move(ready)), over_(*over) {}
  ~Talker() override { over_.set_value(); }
  absl::Status Take(std::string_view message) override {
    asked_ = message == "talk";
    ready_();
    return absl::OkStatus();
  }
  absl::Status Ended() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Next(std::string* message) override {
    if (!asked_ || left_ == 0) return false;
    --left_;
    *message = Bytes(size_);
    return true;
  }

 private:
  size_t left_;
  const size_t size_;
  const std::function<void()> ready_;
  std::promise<void>& over_;
  bool asked_ = false;
};

TEST(GrpcListenerTest, ServesTheOnlyCallOfAConnection) {
  std::promise<void> over;
  std::string peer;
  Door door({}, [&](std::string_view path, const std::string& of, std::function<void()> ready) {
    peer = of;
    return path == kPath ? std::make_unique<Talker>(40, 100'000, std::move(ready), &over) : nullptr;
  });
  TlsClient tls(door);
  ASSERT_TRUE(tls.Connect());
  TestHttp2Client client(1 << 24);  // takes all that is said at once
  const int32_t call =
      client.Call(kPath, GrpcMessage("talk"), {{kOnlyCall, "1"}}, "application/grpc", "POST", /*ends=*/false);
  while (client.answers[call].body.size() < 40 * GrpcMessage(Bytes(100'000)).size()) {
    const std::string said = client.Output();
    ASSERT_TRUE(said.empty() || tls.Write(said));
    const std::string some = tls.ReadSome();
    ASSERT_FALSE(some.empty());
    client.Receive(some);
  }
  EXPECT_EQ(client.answers[call].messages().back(), Bytes(100'000));
  EXPECT_EQ(door.taken(), 0u);
  EXPECT_TRUE(peer.starts_with("ipv4:127.0.0.1:")) << peer;
  tls.Break();
  over.get_future().wait();
}

TEST(GrpcListenerTest, OtherCallsAreTheServers) {
  Door door({}, [&](auto...) { return nullptr; });
  TlsClient tls(door);
  ASSERT_TRUE(tls.Connect());
  TestHttp2Client client;
  client.Call(kPath, GrpcMessage("hello"), {{kOnlyCall, "1"}});
  const std::string all = client.Output();
  const std::string preface = all.substr(0, 24 + 9 + 6);  // with SETTINGS of one entry
  ASSERT_TRUE(tls.Write(preface));
  client.Receive(tls.ReadSome());
  const std::string ack = client.Output();
  EXPECT_EQ(ack, Http2Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, ""));
  const std::string call = all.substr(preface.size());
  ASSERT_TRUE(tls.Write(ack + call));
  ASSERT_TRUE(door.WaitTaken(1));
  UniqueFd server = door.TakeFd(0);
  EXPECT_EQ(ReadAll(server.get(), preface.size() + call.size()), preface + call);
  WriteAll(server.get(), "and you");
  EXPECT_EQ(tls.Read(7), "and you");
}

TEST(GrpcListenerTest, WhoProvesNothingReachesNobody) {
  Door door;
  EXPECT_TRUE(TlsClient(door, {.secret = "another"}).IsRefused());
  EXPECT_TRUE(TlsClient(door, {.shows = false}).IsRefused());
  EXPECT_TRUE(TlsClient(door, {.max_version = TLS1_2_VERSION}).IsRefused());
  EXPECT_TRUE(TlsClient(door, {.protocols = std::string("\x08http/1.1", 9)}).IsRefused());
  EXPECT_TRUE(TlsClient(door, {.protocols = ""}).IsRefused());
  EXPECT_EQ(door.taken(), 0u);
  EXPECT_TRUE(TlsClient(door).IsLetIn(door, 1));
}

TEST(GrpcListenerTest, TooManyBytesBeforeAProofAreRefused) {
  Door door;
  // A ClientHello of 100,000 bytes, in records of 16 KiB.
  std::string hello = std::string("\x01\x01\x86\xa0\x03\x03", 6) + std::string(100'000, 'x');
  std::string records;
  for (size_t i = 0; i < hello.size(); i += 16'384) {
    const std::string part = hello.substr(i, 16'384);
    records += std::string("\x16\x03\x01", 3) + static_cast<char>(part.size() >> 8) +
               static_cast<char>(part.size() & 0xff) + part;
  }
  const UniqueFd fd = door.Dial();
  size_t sent = 0;
  for (ssize_t size; sent < records.size(); sent += static_cast<size_t>(size)) {
    size = send(fd.get(), records.data() + sent, records.size() - sent, MSG_NOSIGNAL);
    if (size < 0) break;
  }
  EXPECT_TRUE(WaitClosed(fd));
  EXPECT_EQ(door.taken(), 0u);
}

TEST(GrpcListenerTest, WhoDripsHasTheSameTime) {
  Door door({.unproven = {.proof_ms = 200}});
  const UniqueFd fd = door.Dial();
  const std::string hello = TlsClient::Hello();
  size_t sent = 0;
  for (bool closed = false; !closed && sent < hello.size(); ++sent) {
    if (send(fd.get(), &hello[sent], 1, MSG_NOSIGNAL) < 0) break;
    pollfd one{fd.get(), POLLIN, 0};
    char byte;
    closed = poll(&one, 1, 20) == 1 && recv(fd.get(), &byte, 1, 0) <= 0;
  }
  EXPECT_LT(sent, hello.size());
  EXPECT_EQ(door.taken(), 0u);
}

TEST(GrpcListenerTest, AbandonedHandshakesOfItsOwnPeerMakeRoom) {
  Door door({.unproven = {.handshakes = 8, .handshakes_of_peer = 4, .cool_ms = 100, .hurried_ms = 100}});
  std::vector<UniqueFd> abandoned;
  for (int i = 0; i < 100; ++i) abandoned.push_back(door.Dial(TlsClient::Hello()));
  TlsClient honest(door);
  EXPECT_TRUE(honest.IsLetIn(door, 1));
}

TEST(GrpcListenerTest, EitherSideMayEndItInAnyState) {
  Door door;
  door.Dial();                                  // silent
  door.Dial(TlsClient::Hello().substr(0, 20));  // in the midst of its hello
  door.Dial(TlsClient::Hello());                // and after it
  size_t taken = 0;
  {
    TlsClient client(door);
    ASSERT_TRUE(client.IsLetIn(door, ++taken));
    ASSERT_TRUE(client.Write("the last words"));
    client.End();
    UniqueFd server = door.TakeFd(taken - 1);
    EXPECT_EQ(ReadAll(server.get(), 100), "the last words") << "then the end";
    WriteAll(server.get(), "are heard");
    EXPECT_EQ(client.Read(9), "are heard") << "the other half is open";
    server.reset();
    EXPECT_TRUE(client.HasEndedInOrder());
  }
  {
    TlsClient client(door);
    ASSERT_TRUE(client.IsLetIn(door, ++taken));
    client.Break();
    EXPECT_EQ(ReadAll(door.TakeFd(taken - 1).get(), 100), "");
  }
  {
    TlsClient client(door);
    ASSERT_TRUE(client.IsLetIn(door, ++taken));
    const std::string last = Bytes(1 << 20);
    std::thread writer([server = door.TakeFd(taken - 1), &last] { WriteAll(server.get(), last); });
    EXPECT_EQ(client.Read(last.size()), last) << "also what was said before the end";
    EXPECT_TRUE(client.HasEndedInOrder());
    writer.join();
  }
}

TEST(GrpcListenerTest, ManyBytesBothWaysAtOnce) {
  Door door;
  TlsClient client(door);
  ASSERT_TRUE(client.IsLetIn(door, 1));
  UniqueFd server = door.TakeFd(0);
  const std::string up = Bytes(10'000'000);
  const std::string down = Bytes(10'000'001);
  std::string got_up;
  std::thread reader([&] { got_up = ReadAll(server.get(), up.size()); });
  std::thread writer([&] { WriteAll(server.get(), down); });
  // One SSL has one thread: its writes wait while the server's wait for it, unless what is in between takes both.
  std::string got_down;
  for (size_t sent = 0, part = 100'000; sent < up.size(); sent += part) {
    ASSERT_TRUE(client.Write(std::string_view(up).substr(sent, part)));
    got_down += client.Read(part);
  }
  got_down += client.Read(1);
  reader.join();
  writer.join();
  EXPECT_TRUE(got_up == up);
  EXPECT_TRUE(got_down == down);
}

TEST(GrpcListenerTest, WhatAPeerDoesNotReadWaitsAtTheServer) {
  Door door;
  TlsClient client(door);
  ASSERT_TRUE(client.IsLetIn(door, 1));
  UniqueFd server = door.TakeFd(0);
  const std::string part(64 << 10, 'x');
  size_t sent = 0;
  for (pollfd one{server.get(), POLLOUT, 0}; sent < size_t{64} << 20 && poll(&one, 1, 500) == 1;) {
    const ssize_t size = send(server.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size > 0) sent += static_cast<size_t>(size);
  }
  EXPECT_LT(sent, size_t{32} << 20) << "what sockets hold, and no more";
  TlsClient other(door);
  EXPECT_TRUE(other.IsLetIn(door, 2)) << "nobody else waits";
  EXPECT_EQ(client.Read(sent).size(), sent);
}

TEST(GrpcListenerTest, AfterAStopThoseWhoAreInGoOn) {
  Door door;
  TlsClient client(door);
  ASSERT_TRUE(client.IsLetIn(door, 1));
  UniqueFd silent = door.Dial();
  door.listener().Stop();
  EXPECT_TRUE(WaitClosed(silent));
  UniqueFd server = door.TakeFd(0);
  WriteAll(server.get(), "still here");
  EXPECT_EQ(client.Read(10), "still here");
}

TEST(PeerOfTest, OnlyNamesOfRelaysAreTakenApart) {
  EXPECT_EQ(PeerOf("ipv4:10.0.0.7:1"), "ipv4:10.0.0.7:1");
  EXPECT_EQ(PeerOf("unix-abstract:taskd-0123456789abcdef-ipv4:10.0.0.7:1"), "ipv4:10.0.0.7:1");
  EXPECT_EQ(PeerOf("unix-abstract:taskd-0123456789abcdef-ipv6:%5Bfe80::1%5D:1"), "ipv6:[fe80::1]:1");
  EXPECT_EQ(PeerOf("unix-abstract:taskd-"), "unix-abstract:taskd-");
  EXPECT_EQ(PeerOf("unix:"), "unix:");
}

TEST(GrpcListenerTest, WhatIsNeitherIsClosed) {
  Door door;
  for (const std::string& says : {std::string("GET / HTTP/1.1\r\n"), std::string(1, '\0'), std::string("x")}) {
    EXPECT_TRUE(WaitClosed(door.Dial(says))) << says;
  }
  EXPECT_EQ(door.taken(), 0u);
}

TEST(GrpcListenerTest, ASilentConnectionIsClosedAfterItsTime) {
  Door door({.unproven = {.proof_ms = 1}});
  UniqueFd silent = door.Dial();
  EXPECT_TRUE(WaitClosed(silent));
}

TEST(GrpcListenerTest, AFloodOfSilentOnesPushesOutTheOldest) {
  Door door({.unproven = {.connections = 4, .proof_ms = 3'600'000}});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(door.Dial());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(WaitClosed(silent[static_cast<size_t>(i)])) << i;
  TlsClient speaking(door);
  EXPECT_TRUE(speaking.IsLetIn(door, 1)) << "whoever speaks is heard";
}

TEST(GrpcListenerTest, APeerHasHalfOfTheDescriptorsAndPlainTextItsShare) {
  Door door({.descriptors = 24, .plain = 3, .plain_of_peer = 2});
  std::vector<UniqueFd> open;
  for (size_t i = 1; i <= 2; ++i) {
    open.push_back(door.Dial(kPlain));
    ASSERT_TRUE(door.WaitTaken(i));
  }
  EXPECT_TRUE(WaitClosed(door.Dial(kPlain))) << "the third in plain text of one user";
  std::vector<std::unique_ptr<TlsClient>> clients;
  for (size_t i = 3; i <= 6; ++i) {
    clients.push_back(std::make_unique<TlsClient>(door));
    ASSERT_TRUE(clients.back()->IsLetIn(door, i));
  }
  EXPECT_TRUE(TlsClient(door).IsRefused()) << "the fifth of one peer, of 24 descriptors: each takes three";
  door.Close(5);
  EXPECT_TRUE(clients.back()->HasEndedInOrder());
  clients.pop_back();
  EXPECT_TRUE(TlsClient(door).IsLetIn(door, 7)) << "one that its server has closed makes room again";
}

// Descriptors run out for the listener's process, not for its clients: those are another process's.
TEST(GrpcListenerTest, GoesOnWhenThereAreDescriptorsAgain) {
  LogLines log;
  Door door({.descriptors = 10'000, .unproven = {.connections = 10'000, .proof_ms = 3'600'000}});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  // No number above those in use can be given out.
  const rlim_t used = static_cast<rlim_t>(clients.back().get()) + 1;
  const rlimit none{used, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_LT(socket(AF_INET, SOCK_STREAM, 0), 0) << "descriptors did not run out: nothing is tested";
  // They are in the backlog: accepted by the kernel, not by the listener.
  for (UniqueFd& client : clients) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(door.port()));
    ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(client.get(), kPlain.data(), kPlain.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kPlain.size()));
  }
  const bool paused = log.WaitFor("no more connections can be taken");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(paused);
  EXPECT_TRUE(door.WaitTaken(clients.size()));
  EXPECT_TRUE(log.WaitFor("connections are taken again"));
  EXPECT_EQ(log.Count("no more connections can be taken"), 1) << "it is said once";
}

}  // namespace
}  // namespace taskd::proto
