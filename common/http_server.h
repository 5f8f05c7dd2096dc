// A small HTTP/1.1 server, read-only: GET and HEAD of a fixed set of paths, for probes, scrapers and a page.
//
// Design:
// 1. One thread does all input and output and answers kProbe, whose handler must not wait. Another one calls all other
//    handlers, one at a time: a probe never waits for pages, however many are asked for.
// 2. Nobody can starve the others: there are at most kMaxConnections, and when one more comes, the one that has kept us
//    waiting longest (for a request, or for somebody to read our reply) makes room. So a probe is answered
//    whatever the number of silent connections.
// 3. Nobody can make it big: a request is at most kMaxRequestBytes and has no body, a connection has one request under
//    way, replies are shared with their handler and not copied, and those not yet read have a size in all.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"

namespace taskd {

struct HttpRequest {
  std::string path;   // as it came: begins with a slash, escapes are not resolved
  std::string query;  // without its question mark
  std::vector<std::pair<std::string, std::string>> headers;
  std::optional<uid_t> loopback_user;  // who asks, where the connection does not leave this machine (peer_user.h)
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string content_security_policy = "default-src 'self'";  // besides, nobody may frame it
  std::vector<std::pair<std::string, std::string>> headers;    // further ones; sound ones, they are not checked
  std::shared_ptr<const std::string> body;                     // null: empty
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;
// By path; one that ends in a slash, but "/" itself, is for what lies directly below it. Any other path is 404.
using HttpHandlers = std::map<std::string, HttpHandler, std::less<>>;

class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 128;
  static constexpr size_t kMaxRequestBytes = 8 * 1024;        // request line and headers; above it 431
  static constexpr size_t kMaxReplyBytes = size_t{64} << 20;  // of all replies that are not read yet; above it 503
  static constexpr std::chrono::seconds kRequestTimeout{
      10};                                                 // from the connection, or a request's first byte, to its end
  static constexpr std::chrono::seconds kIdleTimeout{75};  // between two requests; scrapers come once a minute
  static constexpr std::chrono::seconds kWriteTimeout{10};   // in which a reader takes something
  static constexpr std::chrono::milliseconds kLinger{1000};  // for a peer to read the last reply before the end

  static constexpr std::string_view kProbe = "/healthz";

  // ALREADY_EXISTS (it is in use) or UNAVAILABLE: the address cannot be listened on, with the system's reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address, HttpHandlers handlers);
  ~HttpServer();  // ends all connections at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd
