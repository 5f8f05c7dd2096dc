// The writing half of a server's stream: nodes, voters, callers, watchers and subscribers.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "grpcpp/grpcpp.h"

namespace taskd::manager {

// One write is under way at a time; what comes up meanwhile waits in the subclass, which gives it out by FillNext. It
// ends once. `Base` is the reactor that gRPC has for the stream. A subclass is made by `new` and deletes itself in
// OnDone.
template <typename Base, typename Message>
class WritingReactor : public Base {
 public:
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    ok ? WriteNext() : OnWriteFailed();
  }

 protected:
  // With the mutex. Fills a cleared message with what is to be sent next; false: there is nothing. May end the stream.
  virtual bool FillNext(Message* message) = 0;
  // With the mutex. Where the client is read from, the read fails too, and ends the stream.
  virtual void OnWriteFailed() {}

  // With the mutex; to be called when there is something new.
  void WriteNext() {
    if (writing_ || ended_) return;
    message_.Clear();
    if (!FillNext(&message_)) return;
    writing_ = true;
    this->StartWrite(&message_);
  }
  void End(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    EndLocked(status);
  }
  void EndLocked(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    this->Finish(status);
  }

  std::mutex mutex_;  // guards these and all that FillNext reads; taken after the core's, never before it
  bool writing_ = false;
  bool ended_ = false;

 private:
  Message message_;
};

// A stream on which only the server speaks. A subclass unsubscribes in OnDone.
template <typename Message>
class PushReactor : public WritingReactor<grpc::ServerWriteReactor<Message>, Message> {
 public:
  void OnCancel() final { this->End(Gone()); }
  void OnSendInitialMetadataDone(bool) final { this->OnWriteDone(true); }

 protected:
  // So that the client knows that it is heard, long before there are news. From the constructor.
  void SayHello() {
    this->writing_ = true;
    this->StartSendInitialMetadata();
  }
  void OnWriteFailed() final { this->EndLocked(Gone()); }

 private:
  static grpc::Status Gone() { return {grpc::StatusCode::CANCELLED, "the listener has gone"}; }
};

// One that a core tells its news, as a `Sink` that it has subscribed.
template <typename Message, typename Core, typename Sink>
class WatcherReactor : public PushReactor<Message>, public Sink {
 public:
  void Close() override { this->End({grpc::StatusCode::UNAVAILABLE, "the manager is ending"}); }
  void OnDone() final {
    core_->Unsubscribe(this);
    delete this;
  }

 protected:
  explicit WatcherReactor(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~WatcherReactor() override = default;

  // At the end of the subclass's constructor: the core may tell something at once. `options`: the subscription's.
  template <typename... Options>
  void Start(const grpc::Status& refusal, const Options&... options) {
    if (!refusal.ok()) {
      this->End(refusal);
    } else if (!core_->Subscribe(this, options...)) {
      Close();
    }
  }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace taskd::manager
