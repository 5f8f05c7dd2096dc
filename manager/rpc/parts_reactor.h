// An answer that is larger than a message may be, in parts that the client merges (MergeFrom): scalars come once, and
// repeated fields follow each other.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"

namespace taskd::manager {

// A part ends when it has this size; what is added to it in one go must have less than 3 MiB.
inline constexpr size_t kPartBytes = size_t{1} << 20;
// Each answer under way holds all that it is about: so many at a time, and each for so long.
inline constexpr int kMaxAnswersUnderWay = 32;
inline constexpr std::chrono::seconds kAnswerTimeout{30};

// Made by `new`, deletes itself.
template <typename Message>
class PartsReactor final : public WritingReactor<grpc::ServerWriteReactor<Message>, Message> {
 public:
  // Fills the next part; false: there is none. Called under a lock: takes none that Wait's callback holds.
  using NextPart = std::function<bool(Message*)>;
  using Expire = std::function<void()>;

  // `under_way` counts the service's answers and outlives them.
  PartsReactor(grpc::CallbackServerContext* context, std::atomic<int>* under_way, const grpc::Status& refusal)
      : context_(context), under_way_(under_way) {
    const bool too_many = ++*under_way_ > kMaxAnswersUnderWay;
    if (!refusal.ok()) {
      this->End(refusal);
    } else if (too_many) {
      this->End({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many answers are under way, ask again"});
    } else {
      open_ = true;
    }
  }

  // Whether Begin or BeginLater is to be called, once; else it has ended already.
  bool open() const { return open_; }

  // In any thread.
  void Begin(NextPart next) {
    std::lock_guard lock(this->mutex_);
    next_ = std::move(next);
    taken_alarm_.Start(kAnswerTimeout, [this] { context_->TryCancel(); });
    this->WriteNext();
  }
  // `wait` starts a wait that ends with Begin, whatever happens, and returns what ends it early, as in WaitReactor.
  // Before the reactor is given to gRPC.
  void BeginLater(std::chrono::milliseconds timeout, const std::function<Expire(PartsReactor*)>& wait) {
    expire_ = wait(this);
    wait_alarm_.Set(std::chrono::system_clock::now() + timeout, [expire = expire_](bool rings) {
      if (rings) expire();
    });
  }

  void OnCancel() override {
    if (expire_) expire_();
  }
  void OnDone() override {
    --*under_way_;
    delete this;
  }

 private:
  ~PartsReactor() override = default;

  bool FillNext(Message* part) override {
    if (next_(part)) return true;
    this->EndLocked(grpc::Status::OK);
    return false;
  }
  void OnWriteFailed() override { this->EndLocked({grpc::StatusCode::CANCELLED, "the client has gone"}); }

  grpc::CallbackServerContext* const context_;
  std::atomic<int>* const under_way_;
  bool open_ = false;
  NextPart next_;
  Expire expire_;
  grpc::Alarm wait_alarm_;
  StreamAlarm taken_alarm_;
};

}  // namespace taskd::manager
