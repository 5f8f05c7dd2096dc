// Serves gRPC's calls in plain text, to strangers too: HTTP/2 by nghttp2, each connection within the limits of
// plain_connection.h, all of them on one thread. gRPC's own server bounds neither its threads nor what a client's headers
// and streams take.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd::proto {

// What all connections hold: beyond it the one that holds most is closed.
inline constexpr size_t kPlainHeldBytes = 40 << 20;
// Messages of a call that its connection has not come to take.
inline constexpr size_t kPlainWaitingMessages = 1024;

// The way to the client of one call.
class PlainCall {
 public:
  // From any thread, in the order of the calls; never blocks. What comes after Finish, or when the call is over, is
  // ignored. A unary call is one message and OK, or another status.
  virtual void Write(std::string message) = 0;
  virtual void Finish(const absl::Status& status) = 0;
  // Once, after `delay`, on the server's thread, unless the server is gone by then. From the handler only.
  virtual void After(std::chrono::milliseconds delay, std::function<void()> then) = 0;

 protected:
  ~PlainCall() = default;
};

class PlainServer {
 public:
  // Called on the server's thread with a whole request: as long as it takes, everybody waits. What it returns, not null, is called there once
  // when the call is over: answered, given up by the client, or ended by a limit.
  using Over = std::function<void()>;
  using Handler = std::function<Over(const std::shared_ptr<PlainCall>& call, const std::string& request)>;
  using Methods = std::map<std::string, Handler, std::less<>>;  // by path: "/package.Service/Method"

  // `otherwise`: the answer to calls of any other path. UNAVAILABLE: there are no descriptors for it.
  static absl::StatusOr<std::unique_ptr<PlainServer>> Start(Methods methods, absl::Status otherwise);
  // Ends calls with UNAVAILABLE, says what can be said at once, and closes all connections.
  ~PlainServer();
  PlainServer(const PlainServer&) = delete;
  PlainServer& operator=(const PlainServer&) = delete;

  // A connection of which nothing has been read. How many there may be is the listener's affair. Any thread.
  void Take(UniqueFd connection);

 private:
  class Impl;
  explicit PlainServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::proto
