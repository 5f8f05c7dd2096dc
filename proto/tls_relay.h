// One connection that speaks TLS: its handshake, and once the peer has proven itself a relay between it and a server in
// plain text, which has the other end of a pair of sockets. Until then the server does not know of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/event_loop.h"
#include "common/tls_channel.h"
#include "common/unique_fd.h"

namespace taskd::proto {

// All on the loop's thread.
class TlsRelay {
 public:
  static constexpr size_t kMostBytesBeforeProof = size_t{32} << 10;
  // What is kept of either direction while its receiver does not take it; then its sender waits. One read more, at most.
  static constexpr size_t kMostBytesWaiting = size_t{64} << 10;

  struct Callbacks {
    // The peer has proven itself. The result is this side's end of the pair, non-blocking; an invalid one closes the
    // connection.
    std::function<UniqueFd()> proven;
    // The connection is closed; OK: in order, by either side. Once; the relay is not to be destroyed within it.
    std::function<void(const absl::Status& why)> ended;
  };

  // `peer`: non-blocking.
  TlsRelay(EventLoop* loop, UniqueFd peer, std::unique_ptr<TlsChannel> tls, Callbacks callbacks);
  ~TlsRelay() { Close(); }
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  void Start();  // reads what is there
  void Close();  // without `ended`

 private:
  struct Watched {
    uint32_t events = 0;
    bool added = false;
  };

  bool is_proven() const { return inner_.valid(); }
  bool WantsFromPeer() const;
  bool WantsFromInner() const;
  void OnPeer(uint32_t events);
  void OnInner(uint32_t events);
  // False: the connection has ended.
  bool ReadPeer();
  bool Take(std::string_view bytes);
  bool ReadInner();
  bool InnerHasEnded();
  bool Go();  // writes what can be written, and sees what is to be waited for
  void Watch(int fd, uint32_t events, Watched* watched, EventLoop::FdCallback callback);
  bool End(const absl::Status& why);  // false

  EventLoop& loop_;
  UniqueFd peer_;
  UniqueFd inner_;  // this side's end, once the peer is proven
  const std::unique_ptr<TlsChannel> tls_;
  const Callbacks callbacks_;
  std::string to_peer_;
  std::string to_inner_;
  size_t received_before_proof_ = 0;
  bool peer_has_ended_ = false;   // nothing comes from it any more
  bool inner_has_ended_ = false;  // the server has closed its end
  bool told_inner_ = false;       // that nothing comes any more
  bool told_peer_ = false;
  Watched watched_peer_;
  Watched watched_inner_;
  bool timer_set_ = false;
  EventLoop::TimerId timer_{};
};

}  // namespace taskd::proto
