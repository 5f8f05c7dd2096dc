// One connection that speaks TLS: its handshake, and once the peer has proven itself either the one call that this side
// serves itself (stream_connection.h), or a relay between the peer and a server in plain text, which has the other end of
// a pair of sockets. Until then the server does not know of it.
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
#include "proto/stream_connection.h"

namespace taskd::proto {

// All on the loop's thread.
class TlsRelay {
 public:
  static constexpr size_t kMostBytesBeforeProof = size_t{32} << 10;
  // What is kept of either direction while its receiver does not take it; then its sender waits. One read more, at most.
  static constexpr size_t kMostBytesWaiting = size_t{64} << 10;

  struct Callbacks {
    // The peer has proven itself. False closes the connection.
    std::function<bool()> proven;
    // The server is to have it. The result is this side's end of the pair, non-blocking; an invalid one closes the
    // connection.
    std::function<UniqueFd()> relayed;
    // The calls that this side serves itself; null: none.
    StreamConnection::Open open;
    StreamConnection::HalfSaid* half_said;  // with `open`
    // The connection is closed; OK: in order, by either side. Once; the relay is not to be destroyed within it.
    std::function<void(const absl::Status& why)> ended;
  };

  // `peer`: non-blocking.
  TlsRelay(EventLoop* loop, UniqueFd peer, std::unique_ptr<TlsChannel> tls, Callbacks callbacks);
  ~TlsRelay() { Close(); }
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  void Start();  // reads what is there
  void Ready();  // StreamConnection::Ready(), where there is one
  void Close();  // without `ended`

 private:
  struct Watched {
    uint32_t events = 0;
    bool added = false;
  };

  bool WantsFromPeer() const;
  bool WantsFromInner() const;
  void OnPeer(uint32_t events);
  void OnInner(uint32_t events);
  // False: the connection has ended.
  bool ReadPeer();
  bool Take(std::string_view bytes);
  bool Proven();
  bool TakePlain(const std::string& plain);
  bool Relay();
  bool SendOfStream();
  bool ReadInner();
  bool InnerHasEnded();
  bool Go();  // writes what can be written, and sees what is to be waited for
  void Watch(int fd, uint32_t events, Watched* watched, EventLoop::FdCallback callback);
  bool End(const absl::Status& why);  // false

  EventLoop& loop_;
  UniqueFd peer_;
  UniqueFd inner_;  // this side's end, once there is a pair
  const std::unique_ptr<TlsChannel> tls_;
  const Callbacks callbacks_;
  bool proven_ = false;
  std::unique_ptr<StreamConnection> stream_;  // until it is known that a server is to have the connection
  SettingsAck ack_;                           // of what the stream has said before that
  std::string to_peer_;
  std::string to_inner_;
  size_t received_before_proof_ = 0;
  bool peer_has_ended_ = false;   // nothing comes from it any more
  bool inner_has_ended_ = false;  // the server has closed its end, or the call is over
  bool told_inner_ = false;       // that nothing comes any more
  bool told_peer_ = false;
  Watched watched_peer_;
  Watched watched_inner_;
  bool timer_set_ = false;
  EventLoop::TimerId timer_{};
};

}  // namespace taskd::proto
