// A stream on which the server tells news as they come up: watchers and subscribers.
#pragma once

#include <mutex>

#include "grpcpp/grpcpp.h"

namespace taskd::manager {

// One write is under way at a time; what comes up meanwhile waits in the subclass, which gives it out by FillNext. A
// subclass is made by `new`, unsubscribes in OnDone and deletes itself there.
template <typename Message>
class PushReactor : public grpc::ServerWriteReactor<Message> {
 public:
  void OnWriteDone(bool ok) final {
    std::lock_guard lock(mutex_);
    writing_ = false;
    ok ? WriteNext() : EndLocked({grpc::StatusCode::CANCELLED, "the listener has gone"});
  }
  void OnCancel() final { End({grpc::StatusCode::CANCELLED, "the listener has gone"}); }
  void OnSendInitialMetadataDone(bool) final {
    std::lock_guard lock(mutex_);
    writing_ = false;
    WriteNext();
  }

 protected:
  // With the mutex. Fills a cleared message with what is to be said next; false: there is nothing.
  virtual bool FillNext(Message* message) = 0;

  // So that the client knows that it is heard, long before there are news. From the constructor.
  void SayHello() {
    writing_ = true;
    this->StartSendInitialMetadata();
  }
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

  std::mutex mutex_;  // taken after the core's, never before it

 private:
  bool writing_ = false;
  bool ended_ = false;
  Message message_;
};

}  // namespace taskd::manager
