// What a launcher serves from a thread of its own: the job's root store with the rendezvous (node 0), and the node's
// tier of the store.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/run/rank_users.h"
#include "agent/run/rendezvous.h"
#include "common/event_loop.h"
#include "common/frame_buffer.h"
#include "common/handshake_budget.h"
#include "common/tls_channel.h"
#include "store/server.h"

namespace taskd::run {

// Thread safety: one thread owns it and makes all calls, unless noted otherwise.
class StoreHost {
 public:
  struct Callbacks {                                     // on this object's thread
    std::function<void(const LauncherEvent&)> on_event;  // of the whole job
    // One node's answer to CollectStacks(), once. From the network: any text.
    std::function<void(int id, const std::string& text)> on_stacks;
    // The same of Look(), with the hang's number.
    std::function<void(int hang, const std::string& text)> on_evidence;
    // Whom the rendezvous waits for has changed (Rendezvous::WaitsFor); a moment later, and not each change.
    std::function<void(const std::string& waits_for)> on_waiting;
  };

  // What each of its stores may take, and what tiers prove to each other and to the root (StoreServer::Options).
  explicit StoreHost(uint64_t memory_limit_bytes = store::DefaultStoreMemoryBytes(), std::string secret_of_tiers = "");
  ~StoreHost();  // closes everything
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  // First, and until it succeeds once: listens for clients and launchers; answers when ServeRoot() is called.
  // `everywhere`: on all addresses of the machine, for whoever comes; else clients are this user's, root's, or those of
  // whom ranks run as. Errors as StoreServer::Start().
  absl::Status ListenRoot(const HostPort& address, bool everywhere);
  // Launchers speak TLS with it (rendezvous_client.h), whose server has `options.secret`. `peers_prove`: who joins has
  // to prove that he has the secret; else he is given it with his Assignment.
  void ServeRoot(Rendezvous::Options options, Callbacks callbacks, bool peers_prove = false);
  int root_port() const { return root_->port(); }

  // At most once: a tier on a free port of 127.0.0.1, or of all addresses; the result is that port. Its clients wait
  // until SetUpstream() names the store above.
  absl::StatusOr<int> ServeTier(bool everywhere);
  // HOST:PORT of the store that the tier asks from now on. Another than before: its clients' connections are closed.
  // `peer_timeout_ms`: StoreServer::SetPeerTimeout().
  void SetUpstream(const HostPort& upstream, int64_t peer_timeout_ms);

  // The job is over: the tier no longer logs the loss of its upstream.
  void ExpectEnd();

  // Any thread; `callback` runs once on this object's thread, when no launcher that has joined is connected any more.
  // Without a root: at once.
  void WhenAlone(std::function<void()> callback);
  // Any thread. Asks every node that runs ranks for their stacks. The answers come with this id.
  void CollectStacks(int id);
  // Any thread. Asks every such node what it knows of a hang.
  void Look(const LookMessage& message);
  // Any thread. As Rendezvous::Restart() and EndJob().
  void Restart(const std::string& reason);
  void EndJob(const std::string& reason);
  // Any thread, after ServeRoot(). As Rendezvous::SetManager().
  void SetManager(const std::string& manager);

 private:
  store::StoreServer::Options StoreOptions(const HostPort& listen, bool everywhere);
  void RunThread();
  void Do(Rendezvous::Outputs outputs);
  void DoOne(const Rendezvous::Output& output);
  struct Launcher {
    std::string address;                  // HOST:PORT that it came from
    std::unique_ptr<TlsChannel> channel;  // once its handshake may begin
    std::string waiting;                  // what came before
    FrameBuffer in{0};
    std::optional<int> asked;  // CollectStacks()' id, until it has answered
    int looks = 0;             // Look()s that it has not answered; at most kMaxLooks
  };

  void Opened(uint64_t peer, const std::string& address, const std::string& share, bool is_own);
  void BeginHandshakes();
  void SetProofTick();
  void ReceivedTls(uint64_t peer, std::string_view bytes);
  void Received(uint64_t peer, std::string_view bytes);
  void ReceivedMessage(uint64_t peer, std::string_view body);
  void Refuse(uint64_t peer, const std::string& why);
  void Send(uint64_t peer, const std::string& body);
  void Gone(uint64_t peer);
  void SetTimer();
  void ReportWaiting();
  void Report(LauncherEvent::Kind kind, int code, StopCause cause, const std::string& reason);

  const uint64_t memory_limit_bytes_;
  const std::string secret_of_tiers_;
  EventLoop loop_;
  std::thread thread_;
  std::unique_ptr<store::StoreServer> root_;
  std::unique_ptr<store::StoreServer> tier_;
  // On the thread:
  RankUsers rank_users_;
  std::unique_ptr<Rendezvous> rendezvous_;
  Callbacks callbacks_;
  std::map<uint64_t, Launcher> launchers_;  // by peer
  absl::StatusOr<std::shared_ptr<const TlsContext>> tls_ = absl::UnavailableError("not served yet");
  bool peers_prove_ = false;
  HandshakeBudget unproven_;  // of launchers_
  bool beginning_ = false;
  bool proof_ticking_ = false;
  int64_t refused_logged_ns_ = 0;
  std::function<void()> alone_;
  std::deque<Rendezvous::Output> outputs_;
  bool doing_ = false;
  int world_size_ = 0;          // of the newest round
  int forgot_before_ = 0;       // the first round whose keys may be there
  int last_restart_count_ = 0;  // of the newest Start
  int reported_stop_ = -1;
  bool reported_end_ = false;
  std::string reported_waiting_;
  EventLoop::TimerId timer_{};
  bool timer_set_ = false;
};

}  // namespace taskd::run
