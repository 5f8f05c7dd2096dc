#include "agent/run/store_host.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include "agent/run/launcher_frames.h"
#include "common/log.h"
#include "common/realtime.h"

namespace taskd::run {
namespace {

constexpr int64_t kRefusedLogIntervalNs = 1'000'000'000;
constexpr int64_t kProofTickNs = 100'000'000;
constexpr int kHandshakesARound = 4;
// All launchers of a job may come at once, from one address.
constexpr size_t kMostUnproven = 4096;
constexpr int kMaxLooks = 8;

}  // namespace

StoreHost::StoreHost(uint64_t memory_limit_bytes, std::string secret_of_tiers)
    : memory_limit_bytes_(memory_limit_bytes),
      secret_of_tiers_(std::move(secret_of_tiers)),
      unproven_(HandshakeBudget::Limits{.connections = kMostUnproven}) {}

StoreHost::~StoreHost() {
  if (thread_.joinable()) {
    loop_.Stop();
    thread_.join();
  }
  launchers_.clear();  // the disconnects that follow are not reported
  tier_.reset();
  root_.reset();
}

void StoreHost::RunThread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { loop_.Run(); });
}

store::StoreServer::Options StoreHost::StoreOptions(const HostPort& listen, bool everywhere) {
  store::StoreServer::Options options;
  options.listen = listen;
  options.dual_stack = everywhere;
  options.memory_limit_bytes = memory_limit_bytes_;
  options.secret = secret_of_tiers_;
  if (!everywhere) {
    options.serves_user = [this](uid_t user) { return rank_users_.Has(user, EventLoop::NowNs()); };
  }
  return options;
}

absl::Status StoreHost::ListenRoot(const HostPort& address, bool everywhere) {
  store::StoreServer::Options options = StoreOptions(address, everywhere);
  options.frame_service = {
      .magic = kLauncherMagic,
      .max_frame_bytes = kMaxStrangersFrameBytes,
      .opened = [this](uint64_t peer, const std::string& address, const std::string& share,
                       bool is_own) { Opened(peer, address, share, is_own); },
      .received = [this](uint64_t peer, std::string_view bytes) { Received(peer, bytes); },
      .closed = [this](uint64_t peer) { Gone(peer); },
  };
  absl::StatusOr<std::unique_ptr<store::StoreServer>> server = store::StoreServer::Start(&loop_, options);
  if (!server.ok()) return server.status();
  root_ = *std::move(server);
  return absl::OkStatus();
}

void StoreHost::ServeRoot(Rendezvous::Options options, Callbacks callbacks, bool peers_prove) {
  tls_ = TlsContext::Server(options.secret, peers_prove);
  peers_prove_ = peers_prove;
  root_->SetPeerTimeout(options.silence_ns / 1'000'000);
  rendezvous_ = std::make_unique<Rendezvous>(std::move(options), EventLoop::NowNs());
  callbacks_ = std::move(callbacks);
  SetTimer();
  RunThread();
}

absl::StatusOr<int> StoreHost::ServeTier(bool everywhere) {
  RunThread();
  std::promise<absl::StatusOr<int>> result;
  loop_.Post([&] {
    store::StoreServer::Options options = StoreOptions({"127.0.0.1", 0}, everywhere);
    options.is_tier = true;
    absl::StatusOr<std::unique_ptr<store::StoreServer>> server = store::StoreServer::Start(&loop_, options);
    if (!server.ok()) {
      result.set_value(server.status());
      return;
    }
    tier_ = *std::move(server);
    result.set_value(tier_->port());
  });
  return result.get_future().get();
}

void StoreHost::SetUpstream(const HostPort& upstream, int64_t peer_timeout_ms) {
  loop_.Post([this, upstream, peer_timeout_ms] {
    tier_->SetPeerTimeout(peer_timeout_ms);
    tier_->SetUpstream(upstream);
  });
}

void StoreHost::ExpectEnd() {
  loop_.Post([this] { tier_->ExpectEnd(); });
}

void StoreHost::WhenAlone(std::function<void()> callback) {
  if (!thread_.joinable()) {
    callback();
    return;
  }
  loop_.Post([this, callback = std::move(callback)]() mutable {
    if (rendezvous_ == nullptr || !rendezvous_->anybody_joined()) {
      callback();
    } else {
      alone_ = std::move(callback);
    }
  });
}

void StoreHost::CollectStacks(int id) {
  loop_.Post([this, id] {
    if (rendezvous_ == nullptr) return;
    Rendezvous::Outputs outputs;
    for (uint64_t peer : rendezvous_->running_peers()) {
      launchers_[peer].asked = id;
      outputs.push_back({peer, RootMessage(CollectMessage{id})});
    }
    Do(std::move(outputs));
  });
}

void StoreHost::Look(const LookMessage& message) {
  loop_.Post([this, message] {
    if (rendezvous_ == nullptr) return;
    Rendezvous::Outputs outputs;
    for (uint64_t peer : rendezvous_->running_peers()) {
      int& looks = launchers_[peer].looks;
      looks = std::min(looks + 1, kMaxLooks);
      outputs.push_back({peer, RootMessage(message)});
    }
    Do(std::move(outputs));
  });
}

void StoreHost::Restart(const std::string& reason) {
  loop_.Post([this, reason] {
    if (rendezvous_ != nullptr) Do(rendezvous_->Restart(reason, EventLoop::NowNs()));
  });
}

void StoreHost::SetManager(const std::string& manager) {
  loop_.Post([this, manager] { Do(rendezvous_->SetManager(manager, EventLoop::NowNs())); });
}

void StoreHost::EndJob(const std::string& reason) {
  loop_.Post([this, reason] {
    if (rendezvous_ != nullptr) Do(rendezvous_->EndJob(reason, EventLoop::NowNs()));
  });
}

void StoreHost::Opened(uint64_t peer, const std::string& address, const std::string& share, bool is_own) {
  Launcher& launcher = launchers_[peer];
  launcher.address = address;
  launcher.in.set_max_bytes(kMaxStrangersFrameBytes);
  Do(rendezvous_->Opened(peer, EventLoop::NowNs(), peers_prove_ || is_own));
  if (!tls_.ok()) return Refuse(peer, std::string(tls_.status().message()));
  if (const auto victim = unproven_.Add(peer, share, EventLoop::NowNs())) {
    Refuse(*victim, "too many others that have not proven anything either");
  }
  if (!std::exchange(proof_ticking_, true)) SetProofTick();
}

// A few a round: ranks wait for this thread, too.
void StoreHost::BeginHandshakes() {
  if (std::exchange(beginning_, true)) return;
  loop_.AtRoundEnd([this] {
    beginning_ = false;
    for (int i = 0; i < kHandshakesARound; ++i) {
      const std::optional<HandshakeBudget::Turn> turn = unproven_.Next(EventLoop::NowNs());
      if (!turn) return;
      if (turn->drop) Refuse(*turn->drop, "its handshake takes too long while others wait");
      const auto launcher = launchers_.find(turn->begin);
      if (launcher == launchers_.end()) continue;
      launcher->second.channel = (*tls_)->Open();
      if (launcher->second.channel == nullptr) {
        Refuse(turn->begin, "no memory for TLS");
        continue;
      }
      ReceivedTls(turn->begin, std::exchange(launcher->second.waiting, {}));
    }
    BeginHandshakes();
  });
}

void StoreHost::SetProofTick() {
  loop_.RunAfter(kProofTickNs, [this] {
    for (const uint64_t peer : unproven_.Expire(EventLoop::NowNs())) {
      Refuse(peer, "it has not proven itself in time");
    }
    BeginHandshakes();
    proof_ticking_ = !unproven_.idle();
    if (proof_ticking_) SetProofTick();
  });
}

void StoreHost::Refuse(uint64_t peer, const std::string& why) {
  // Whoever reaches the port can be refused as often as he likes.
  if (const int64_t now_ns = EventLoop::NowNs(); now_ns - refused_logged_ns_ >= kRefusedLogIntervalNs) {
    refused_logged_ns_ = now_ns;
    spdlog::warn("the connection of a launcher at {} is closed: {}", launchers_[peer].address, why);
  }
  Do({{peer, std::nullopt}});
}

void StoreHost::Send(uint64_t peer, const std::string& body) {
  auto launcher = launchers_.find(peer);
  if (launcher == launchers_.end() || launcher->second.channel == nullptr) return;
  std::string plain;
  AppendWithLength(body, plain);
  std::string out;
  launcher->second.channel->Send(plain, out);
  if (!out.empty()) root_->SendFrame(peer, out);
}

void StoreHost::Received(uint64_t peer, std::string_view bytes) {
  auto launcher = launchers_.find(peer);
  if (launcher == launchers_.end()) return;
  if (launcher->second.channel != nullptr) return ReceivedTls(peer, bytes);
  if (launcher->second.waiting.size() + bytes.size() > kMaxStrangersFrameBytes) {
    return Refuse(peer, "too many bytes before any proof");
  }
  launcher->second.waiting += bytes;
  unproven_.Wants(peer);
  BeginHandshakes();
}

void StoreHost::ReceivedTls(uint64_t peer, std::string_view bytes) {
  auto launcher = launchers_.find(peer);
  std::string plain;
  std::string out;
  absl::Status status = launcher->second.channel->Receive(bytes, plain, out);
  if (status.ok() && launcher->second.channel->proven()) unproven_.Proven(peer);
  if (!out.empty()) root_->SendFrame(peer, out);
  launcher->second.in.Append(plain);
  // The message may end it.
  while (status.ok() && (launcher = launchers_.find(peer)) != launchers_.end()) {
    std::string_view body;
    absl::StatusOr<bool> whole = launcher->second.in.Next(body);
    if (whole.ok() && !*whole) return;
    status = whole.status();
    if (status.ok()) ReceivedMessage(peer, std::string(body));
  }
  if (status.ok()) return;
  Refuse(peer, absl::IsPermissionDenied(status)
                   ? "it has another TASKD_TOKEN than this one, or none; the same has to be set on every node"
                   : std::string(status.message()));
}

void StoreHost::ReceivedMessage(uint64_t peer, std::string_view body) {
  absl::StatusOr<NodeMessage> message = DecodeNodeMessage(body);
  if (!message.ok()) return Refuse(peer, std::string(message.status().message()));
  if (auto* join = std::get_if<JoinMessage>(&*message); join != nullptr) {
    absl::StatusOr<HostPort> from = ParseHostPort("peer", launchers_[peer].address);
    if (from.ok()) join->info.address = from->host;
  }
  const bool joined = rendezvous_->joined(peer);
  if (auto* event = std::get_if<EventMessage>(&*message); event != nullptr && joined && callbacks_.on_event) {
    if (event->event.round == rendezvous_->round()) event->event.world_size = world_size_;
    callbacks_.on_event(event->event);
  }
  if (const auto* stacks = std::get_if<StacksMessage>(&*message);
      stacks != nullptr && joined && launchers_[peer].asked == stacks->id) {
    launchers_[peer].asked.reset();
    if (callbacks_.on_stacks) callbacks_.on_stacks(stacks->id, stacks->text);
  }
  if (const auto* evidence = std::get_if<EvidenceMessage>(&*message);
      evidence != nullptr && joined && launchers_[peer].looks > 0) {
    --launchers_[peer].looks;
    if (callbacks_.on_evidence) callbacks_.on_evidence(evidence->hang, evidence->text);
  }
  Do(rendezvous_->Received(peer, *message, EventLoop::NowNs()));
  if (joined || !rendezvous_->joined(peer)) return;
  root_->SetMaxFrameBytes(peer, kMaxLauncherFrameBytes);
  if (auto launcher = launchers_.find(peer); launcher != launchers_.end()) {
    launcher->second.in.set_max_bytes(kMaxLauncherFrameBytes);
  }
}

void StoreHost::Gone(uint64_t peer) {
  if (launchers_.erase(peer) == 0) return;
  unproven_.Failed(peer, EventLoop::NowNs());
  Do(rendezvous_->Lost(peer, EventLoop::NowNs()));
  if (alone_ && !rendezvous_->anybody_joined()) std::exchange(alone_, nullptr)();
}

// Sending and closing may call back; what that brings comes after what is being done.
void StoreHost::Do(Rendezvous::Outputs outputs) {
  std::move(outputs.begin(), outputs.end(), std::back_inserter(outputs_));
  if (doing_) return;
  doing_ = true;
  while (!outputs_.empty()) {
    const Rendezvous::Output output = std::move(outputs_.front());
    outputs_.pop_front();
    DoOne(output);
  }
  doing_ = false;
  SetTimer();
}

void StoreHost::DoOne(const Rendezvous::Output& output) {
  if (!output.message) {
    root_->ClosePeer(output.peer);
    Gone(output.peer);
    return;
  }
  if (const auto* start = std::get_if<StartMessage>(&*output.message)) {
    world_size_ = start->assignment.world_size;
    if (start->assignment.round > forgot_before_) {
      forgot_before_ = start->assignment.round;
      root_->ForgetTry(start->assignment.restart_count == last_restart_count_);
      last_restart_count_ = start->assignment.restart_count;
    }
  } else if (const auto* stop = std::get_if<StopMessage>(&*output.message); stop != nullptr) {
    if (stop->round > reported_stop_) Report(LauncherEvent::Kind::kRestarting, 0, stop->cause, stop->reason);
    reported_stop_ = stop->round;
  } else if (const auto* end = std::get_if<EndMessage>(&*output.message); end != nullptr && !reported_end_) {
    reported_end_ = true;
    Report(LauncherEvent::Kind::kEnded, end->exit_code, end->cause, end->reason);
  }
  Send(output.peer, Encode(*output.message));
}

void StoreHost::Report(LauncherEvent::Kind kind, int code, StopCause cause, const std::string& reason) {
  if (!callbacks_.on_event) return;
  LauncherEvent event;
  event.kind = kind;
  event.round = std::max(rendezvous_->round(), 0);
  event.code = code;
  event.reason = reason;
  event.cause = cause;
  event.time_ns = RealtimeNs();
  callbacks_.on_event(event);
}

void StoreHost::SetTimer() {
  if (timer_set_) loop_.Cancel(timer_);
  timer_set_ = true;
  timer_ = loop_.RunAfter(std::max<int64_t>(rendezvous_->next_tick_ns() - EventLoop::NowNs(), 0), [this] {
    timer_set_ = false;
    Do(rendezvous_->Tick(EventLoop::NowNs()));
    ReportWaiting();
  });
}

// At ticks alone: thousands of nodes may join at once.
void StoreHost::ReportWaiting() {
  std::string waits_for = rendezvous_->WaitsFor();
  if (waits_for == reported_waiting_) return;
  reported_waiting_ = std::move(waits_for);
  if (callbacks_.on_waiting) callbacks_.on_waiting(reported_waiting_);
}

}  // namespace taskd::run
