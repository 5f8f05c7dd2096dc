#include "common/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <list>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/peer_user.h"

namespace taskd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// While there are no descriptors: until somebody may have closed one.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr size_t kLingerBytes = 64 * 1024;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::string Reason(http::status status) { return std::string(http::obsolete_reason(status)); }

HttpResponse Refusal(http::status status) {
  HttpResponse response;
  response.status = static_cast<int>(status);
  response.body = std::make_shared<const std::string>(Reason(status) + "\n");
  return response;
}

// What could not be parsed: why.
http::status StatusOf(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return http::status::request_header_fields_too_large;
  }
  return error == http::error::bad_version ? http::status::http_version_not_supported : http::status::bad_request;
}

std::string Head(const HttpResponse& response, size_t size, bool keep_alive) {
  std::string head =
      absl::StrCat("HTTP/1.1 ", response.status, " ", Reason(static_cast<http::status>(response.status)),
                   "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", size,
                   "\r\nConnection: ", keep_alive ? "keep-alive" : "close",
                   // Not to be framed, guessed at, kept, or passed on to others.
                   "\r\nContent-Security-Policy: ", response.content_security_policy,
                   "; frame-ancestors 'none'"
                   "\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer"
                   "\r\nCache-Control: no-store\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  return head + "\r\n";
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(HttpHandlers handlers) : handlers_(std::move(handlers)) {}
  ~Impl() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
    pages_.stop();
    pages_.join();
  }

  absl::Status Start(const HostPort& address) {
    absl::Status free = CheckCanListen("--http", address);
    if (!free.ok()) return free;
    error_code error;
    tcp::resolver resolver(context_);
    auto found = resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
    if (!error) Listen(found.begin()->endpoint(), error);
    if (error) {
      return absl::Status(
          error == asio::error::address_in_use ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kUnavailable,
          absl::StrCat("--http: cannot listen on ", FormatHostPort(address), ": ", error.message()));
    }
    Accept();
    thread_ = std::thread([this] { context_.run(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  class Connection;
  // In the order of `since`: the front one has kept us waiting longest.
  using Connections = std::list<std::weak_ptr<Connection>>;

  void Listen(const tcp::endpoint& endpoint, error_code& error) {
    acceptor_.open(endpoint.protocol(), error);
    // Not SO_REUSEPORT: a second manager would get some of the requests.
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
  }

  void Accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (!error) {
        paused_ = false;
        Add(std::move(socket));
        Accept();
        return;
      }
      // A connection that has gone before we took it is nothing; without descriptors or memory all further ones fail.
      if (error == asio::error::connection_aborted) {
        Accept();
        return;
      }
      if (!std::exchange(paused_, true)) spdlog::warn("--http: cannot accept connections: {}", error.message());
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([this](const error_code&) { Accept(); });
    });
  }

  void Add(tcp::socket socket);

  HttpResponse Answer(const http::request<http::empty_body>& request, bool has_body,
                      std::optional<uid_t> loopback_user) const {
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      HttpResponse response = Refusal(http::status::method_not_allowed);
      response.headers.emplace_back("Allow", "GET, HEAD");
      return response;
    }
    if (has_body) return Refusal(http::status::payload_too_large);
    const std::string_view target = View(request.target());
    if (target.empty() || target.front() != '/') return Refusal(http::status::bad_request);
    const size_t end = std::min(target.find_first_of("?#"), target.size());
    HttpRequest given;
    given.path = target.substr(0, end);
    auto handler = handlers_.find(given.path);
    const size_t folder = given.path.rfind('/') + 1;
    if (handler == handlers_.end() && folder > 1) handler = handlers_.find(given.path.substr(0, folder));
    if (handler == handlers_.end()) return Refusal(http::status::not_found);
    if (end < target.size() && target[end] == '?') given.query = target.substr(end + 1);
    for (const auto& field : request) given.headers.emplace_back(View(field.name_string()), View(field.value()));
    given.loopback_user = loopback_user;
    return handler->second(given);
  }

  const HttpHandlers handlers_;
  int port_ = 0;

  // Of the thread alone. Before the context, whose end ends the connections.
  Connections connections_;
  size_t reply_bytes_ = 0;
  size_t pending_pages_ = 0;
  bool paused_ = false;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer pause_{context_};
  std::thread thread_;
  asio::thread_pool pages_{1};
};

// Lives as long as something of it is under way.
class HttpServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl* server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {}
  ~Connection() {
    Forget();
    Release();
  }

  void Start(Connections::iterator place) {
    place_ = place;
    ReadRequest();
  }

  void Close() {
    is_closed_ = true;
    Forget();
    stream_.close();
  }

 private:
  // The peer has done something: it goes to the end of the line of those who make room.
  void Moved() {
    if (place_) server_->connections_.splice(server_->connections_.end(), server_->connections_, *place_);
  }
  void Forget() {
    if (place_) server_->connections_.erase(*place_);
    place_.reset();
  }
  void Release() {
    server_->reply_bytes_ -= body_ == nullptr ? 0 : body_->size();
    body_.reset();
  }

  // The next one, of which nothing has come yet.
  void Wait() {
    if (buffer_.size() > 0) {
      ReadRequest();
      return;
    }
    stream_.expires_after(kIdleTimeout);
    stream_.async_read_some(buffer_.prepare(buffer_.capacity()),
                            [self = shared_from_this()](const error_code& error, size_t size) {
                              if (error) return self->Close();
                              self->buffer_.commit(size);
                              self->ReadRequest();
                            });
  }

  void ReadRequest() {
    parser_.emplace();
    parser_->header_limit(kMaxRequestBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // one is refused by its method or its being there
    stream_.expires_after(kRequestTimeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](const error_code& error, size_t) { self->HasRead(error); });
  }

  void HasRead(const error_code& error) {
    Moved();
    static const auto* const kHttpErrors = &make_error_code(http::error::bad_method).category();
    const bool has_body = error == http::error::unexpected_body || (!error && !parser_->is_done());
    if (!error || has_body) {
      Ask(parser_->get(), has_body);
    } else if (error.category() == *kHttpErrors && error != http::error::end_of_stream &&
               error != http::error::partial_message) {
      Reply(Refusal(StatusOf(error)), false, false);
    } else {
      Close();
    }
  }

  void Ask(const http::request<http::empty_body>& request, bool has_body) {
    const bool only_head = request.method() == http::verb::head;
    const bool keep_alive = request.keep_alive() && !has_body;
    if (!user_) user_ = UserOfLoopbackPeer(stream_.socket().native_handle());
    if (View(request.target()) == kProbe) {
      return Reply(server_->Answer(request, has_body, *user_), only_head, keep_alive);
    }
    // Those of connections that were closed are among them.
    if (server_->pending_pages_ >= kMaxConnections) {
      return Reply(Refusal(http::status::service_unavailable), only_head, keep_alive);
    }
    ++server_->pending_pages_;
    stream_.expires_never();
    // The last reference to this goes in this thread.
    asio::post(server_->pages_,
               [self = shared_from_this(), request, has_body, user = *user_, only_head, keep_alive]() mutable {
                 Impl* server = self->server_;
                 HttpResponse response = self->is_closed_ ? HttpResponse() : server->Answer(request, has_body, user);
                 asio::post(server->context_,
                            [self = std::move(self), response = std::move(response), only_head, keep_alive]() mutable {
                              --self->server_->pending_pages_;
                              if (!self->is_closed_) self->Reply(std::move(response), only_head, keep_alive);
                            });
               });
  }

  void Reply(HttpResponse response, bool only_head, bool keep_alive) {
    parser_.reset();
    const size_t size = response.body == nullptr ? 0 : response.body->size();
    if (size > kMaxReplyBytes - std::min(server_->reply_bytes_, kMaxReplyBytes)) {
      response = Refusal(http::status::service_unavailable);
    }
    head_ = Head(response, response.body == nullptr ? 0 : response.body->size(), keep_alive);
    if (!only_head && response.body != nullptr) {
      body_ = std::move(response.body);
      server_->reply_bytes_ += body_->size();
    }
    keep_alive_ = keep_alive;
    sent_ = 0;
    Write();
  }

  void Write() {
    asio::const_buffer body = body_ == nullptr ? asio::const_buffer() : asio::buffer(*body_);
    asio::const_buffer head = asio::buffer(head_);
    std::array<asio::const_buffer, 2> rest = {head + sent_, body + (sent_ - std::min(sent_, head.size()))};
    if (asio::buffer_size(rest) == 0) {
      HasWritten();
      return;
    }
    stream_.expires_after(kWriteTimeout);
    stream_.async_write_some(rest, [self = shared_from_this()](const error_code& error, size_t size) {
      if (error) return self->Close();
      self->Moved();
      self->sent_ += size;
      self->Write();
    });
  }

  void HasWritten() {
    Release();
    if (keep_alive_) {
      Wait();
      return;
    }
    // What was not read yet would make the kernel reset the connection, and the peer might lose our reply.
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLinger);
    Drain(kLingerBytes);
  }

  void Drain(size_t most) {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(buffer_.capacity()),
                            [self = shared_from_this(), most](const error_code& error, size_t size) {
                              error || size >= most ? self->Close() : self->Drain(most - size);
                            });
  }

  Impl* const server_;
  std::optional<Connections::iterator> place_;
  beast::basic_stream<tcp> stream_;
  beast::flat_static_buffer<kMaxRequestBytes> buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::string head_;
  std::shared_ptr<const std::string> body_;
  size_t sent_ = 0;
  bool keep_alive_ = false;
  std::optional<std::optional<uid_t>> user_;  // of the other end, once there was a request
  std::atomic<bool> is_closed_ = false;
};

void HttpServer::Impl::Add(tcp::socket socket) {
  if (connections_.size() >= kMaxConnections) {
    if (std::shared_ptr<Connection> longest = connections_.front().lock()) longest->Close();
  }
  auto connection = std::make_shared<Connection>(this, std::move(socket));
  connection->Start(connections_.insert(connections_.end(), connection));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address, HttpHandlers handlers) {
  auto impl = std::make_unique<Impl>(std::move(handlers));
  absl::Status status = impl->Start(address);
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace taskd
