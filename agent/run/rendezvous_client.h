// A node's connection to the rendezvous (rendezvous.h), on the launcher's event loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "agent/process/resolver.h"
#include "agent/run/rendezvous_messages.h"
#include "common/address.h"
#include "common/event_loop.h"
#include "common/frame_buffer.h"
#include "common/observed_clock.h"
#include "common/tls_channel.h"
#include "common/unique_fd.h"

namespace taskd::run {

// Connects, and retries until that works or the time is over: a refused connection, an unknown name and a host that
// does not answer may all be temporary. Joins as soon as it is connected. Until the first Start it also reconnects when
// the connection is lost; later the job's state is gone with it.
//
// It speaks TLS: frames (launcher_frames.h) hold TLS records, and the plaintext again is u32 length and message.
// With a secret the root has to prove that it has the same; without one the root is not checked.
//
// A peer that is no taskd launcher is an error: at once if it answers something else, after kMuteNs if it stays silent,
// after kClosingNs if it does nothing but close connections (proxies of service meshes do that until the launcher
// behind them is there).
class RendezvousClient {
 public:
  static constexpr int64_t kMuteNs = 10'000'000'000;
  static constexpr int64_t kClosingNs = 5'000'000'000;

  struct Callbacks {
    std::function<void(RootMessage)> received;  // all but PingMessage, which the client answers
    // The connection cannot be had, or is gone for good; one line. Nothing is received after it.
    std::function<void(const std::string& why)> failed;
  };

  // `loop` must outlive this. `secret`: the job's; empty if it was given none. `timeout_ns`: for each time that it
  // connects. `silence_ns`: a root that says nothing for so long is gone, though it pings each 2 s; as soon as there is
  // an Assignment, what that says holds. `ports`: how many, from the address's on, the job's root may be at. With more
  // than one, what is found at one of them and is no launcher, or another job's, is passed over.
  RendezvousClient(EventLoop* loop, HostPort address, NodeInfo info, std::string secret, int64_t timeout_ns,
                   int64_t silence_ns, Callbacks callbacks, int ports = 1);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // The callbacks may destroy nothing of this; Close() is fine.
  void Start();
  void Send(const NodeMessage& message);  // without a connection: it is dropped
  void Close();                           // for good, without a callback

  bool connected() const { return proved_; }
  int port() const { return port_; }                             // that it is connected to, or tries
  const std::string& last_error() const { return last_error_; }  // why it is not connected; empty: not known yet

 private:
  void Look();
  void TryNext();
  void OnConnecting();
  void OnConnected();
  void OnReadable();
  void OnReady(uint32_t events);
  void TakeFrames();
  bool TakeFrame(std::string_view body);
  bool TakeMessages();
  bool TakeMessage(RootMessage message);
  void SendFrame(std::string_view body);
  void Write();
  void SetSilence(int64_t silence_ns);
  void CheckSilence();
  void Disconnect();
  void TryAgain(const std::string& why);
  bool PassOver(const std::string& why);
  void ConnectionEnded(const std::string& why);
  void Fail(const std::string& why);
  std::string Peer() const;
  void SetTimer(int64_t delay_ns, void (RendezvousClient::*method)());
  void ClearTimer();

  EventLoop* const loop_;
  const HostPort address_;
  const NodeInfo info_;
  const std::string secret_;
  const int64_t timeout_ns_;
  int64_t silence_ns_;
  const Callbacks callbacks_;
  const int ports_;
  int port_;
  process::Resolver resolver_;
  std::vector<process::SocketAddress> addresses_;  // with each port
  size_t next_address_ = 0;
  int64_t deadline_ns_ = 0;
  int64_t back_off_ns_ = 0;
  int64_t closing_since_ns_ = 0;  // 0: the last try did not end with a close
  ObservedClock clock_;
  int64_t connected_ns_ = 0;  // on it
  int64_t heard_ns_ = 0;      // on it
  bool proved_ = false;       // the peer has sent a message of a root
  bool started_ = false;      // StartMessage was received
  bool closed_ = false;
  UniqueFd fd_;
  std::shared_ptr<const TlsContext> tls_;  // once it was connected
  std::unique_ptr<TlsChannel> channel_;    // while there is a connection
  FrameBuffer in_;                         // what the root sends
  FrameBuffer plain_;                      // its plaintext
  std::string out_;
  std::string last_error_;
  std::string passed_over_;  // why, of the last one since the name was looked up
  EventLoop::TimerId timer_{};
  bool timer_set_ = false;
};

}  // namespace taskd::run
