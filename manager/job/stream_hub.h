// What the services of streams have in common whose decisions are one core's: the core's lock, its clock and its peers, and
// a peer's stream.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"
#include "proto/guarded.h"

namespace taskd::manager {

// `Core` has Lost(peer, now_ns), Tick(now_ns) and next_tick_ns(); as all its events these return outputs: `peer`, and a
// `message`, which is a `Message`.
template <typename Core, typename Message>
class StreamHub {
 public:
  // A stream. Called under the hub's lock: takes note, never calls the hub.
  class Stream {
   public:
    virtual void Take(Message message) = 0;
    virtual void ReadOn() = 0;
    virtual void End(const grpc::Status& status) = 0;

   protected:
    ~Stream() = default;
  };

  // `delivered`: under the lock, after all outputs of an event; takes note and goes. May be null.
  // `core`: what it is made of.
  template <typename... Args>
  explicit StreamHub(std::function<void(Core&)> delivered, Args&&... core)
      : core_(std::forward<Args>(core)...), delivered_(std::move(delivered)), ticker_([this] { Run(); }) {}
  ~StreamHub() { Close(); }

  // The number of the stream, which `event(core, peer, now_ns)` has let the core know; 0: closed. Until Remove. At once,
  // so that a stream which goes meanwhile is removed from both.
  template <typename Event>
  uint64_t Add(Stream* stream, const Event& event) {
    std::lock_guard lock(mutex_);
    if (closed_) return 0;
    const uint64_t peer = next_peer_++;
    streams_[peer] = stream;
    Deliver(event(core_, peer, Now()));
    return peer;
  }
  // The stream is not told anything afterwards.
  void Remove(uint64_t peer) {
    std::lock_guard lock(mutex_);
    if (streams_.erase(peer) > 0) Deliver(core_.Lost(peer, Now()));
  }
  // `event(core, now_ns)` returns what the core wants done.
  template <typename Event>
  void Feed(const Event& event) {
    std::lock_guard lock(mutex_);
    if (!closed_) Deliver(event(core_, Now()));
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      for (auto& [peer, stream] : streams_) stream->End({grpc::StatusCode::UNAVAILABLE, "the manager is ending"});
    }
    wake_.notify_all();
    ticker_.join();
  }

 protected:
  std::mutex mutex_;  // guards all
  Core core_;
  std::map<uint64_t, Stream*> streams_;

 private:
  static int64_t Now() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

  template <typename Outputs>
  void Deliver(Outputs outputs) {
    for (auto& output : outputs) {
      auto found = streams_.find(output.peer);
      if (found != streams_.end()) found->second->Take(std::move(output.message));
    }
    if (delivered_) delivered_(core_);
    const int64_t next = core_.next_tick_ns();
    if (next < next_tick_ns_) wake_.notify_all();
    next_tick_ns_ = next;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
      const int64_t now = Now();
      next_tick_ns_ = core_.next_tick_ns();
      if (next_tick_ns_ <= now) {
        Deliver(core_.Tick(now));
      } else if (next_tick_ns_ == std::numeric_limits<int64_t>::max()) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, std::chrono::nanoseconds(next_tick_ns_ - now));
      }
    }
  }

  const std::function<void(Core&)> delivered_;
  std::condition_variable wake_;
  bool closed_ = false;
  int64_t next_tick_ns_ = std::numeric_limits<int64_t>::max();
  uint64_t next_peer_ = 1;
  std::thread ticker_;  // last: it uses the others
};

// A stream of the hub, which is its own reactor. A subclass handles what it reads, and gives its number by `peer_`.
template <typename Hub, typename In, typename Out>
class HubReactor : public WritingReactor<grpc::ServerBidiReactor<proto::Guarded<In>, Out>, Out>, public Hub::Stream {
 public:
  void ReadOn() override {
    std::lock_guard lock(this->mutex_);
    if (this->ended_) return;
    in_.Clear();  // or each stream would keep the largest message that it ever had
    this->StartRead(&in_);
  }
  void End(const grpc::Status& status) override { Writing::End(status); }
  void OnCancel() override { Leave({grpc::StatusCode::CANCELLED, "the other side has gone"}); }
  void OnDone() override {
    hub_->Remove(peer_);
    delete this;
  }

 protected:
  explicit HubReactor(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  ~HubReactor() override = default;

  // At the end of the subclass's constructor.
  void StartOrEnd(const grpc::Status& refusal) {
    if (!refusal.ok()) {
      End(refusal);
      return;
    }
    first_message_.Start(kFirstMessageTimeout, [this] { End(NoFirstMessage()); });
    this->StartRead(&in_);
  }
  // The first message, or none any more.
  bool IsFirst() {
    if (peer_ != 0) return false;
    first_message_.Stop();
    return true;
  }
  // `event` as of Hub::Add.
  template <typename Event>
  grpc::Status Join(const Event& event) {
    peer_ = hub_->Add(this, event);
    return peer_ != 0 ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the manager is ending");
  }
  void Leave(const grpc::Status& status) {
    hub_->Remove(peer_);
    End(status);
  }

  const std::shared_ptr<Hub> hub_;
  proto::Guarded<In> in_;
  std::atomic<uint64_t> peer_ = 0;  // 0: the first message has not come; OnCancel asks beside it
  // What the subclass queues is guarded by the reactor's mutex, which is taken after the hub's, never before it.

 private:
  using Writing = WritingReactor<grpc::ServerBidiReactor<proto::Guarded<In>, Out>, Out>;
  StreamAlarm first_message_;
};

}  // namespace taskd::manager
