#include "manager/job/route_agreement_service.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "manager/job/route_agreement.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/switch/core.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/route_agreement.grpc.pb.h"

namespace taskd::manager {
namespace {

using std::chrono::steady_clock;

class Voter {
 public:
  virtual void Send(const RouteVerdict& verdict) = 0;  // under the lock of RouteAgreements: takes note and goes

 protected:
  ~Voter() = default;
};

uint64_t RandomRound() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// The core with a lock, a clock and its peers.
class RouteAgreements {
 public:
  RouteAgreements() : core_(RandomRound()), thread_([this] { Run(); }) {}
  ~RouteAgreements() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  uint64_t Propose(Voter* voter, RouteProposal proposal) {
    std::lock_guard lock(mutex_);
    const uint64_t peer = next_peer_++;
    voters_[peer] = voter;
    core_.Propose(peer, std::move(proposal), steady_clock::now(), &out_);
    Deliver();
    return peer;
  }
  void Acknowledge(uint64_t peer) {
    std::lock_guard lock(mutex_);
    core_.Acknowledge(peer, steady_clock::now(), &out_);
    Deliver();
  }
  void Written(uint64_t peer) {
    std::lock_guard lock(mutex_);
    core_.Written(peer);
  }
  // The voter is not sent anything afterwards.
  void Gone(uint64_t peer) {
    std::lock_guard lock(mutex_);
    if (voters_.erase(peer) == 0) return;
    core_.Gone(peer, steady_clock::now(), &out_);
    Deliver();
  }

 private:
  void Deliver() {
    for (const RouteAgreementCore::Output& output : out_) {
      auto voter = voters_.find(output.peer);
      if (voter != voters_.end()) voter->second->Send(output.verdict);
    }
    out_.clear();
    wake_.notify_all();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      std::optional<steady_clock::time_point> next = core_.NextTick();
      if (!next.has_value()) {
        wake_.wait(lock);
      } else if (*next > steady_clock::now()) {
        wake_.wait_until(lock, *next);
      } else {
        core_.Tick(steady_clock::now(), &out_);
        Deliver();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  uint64_t next_peer_ = 1;
  RouteAgreementCore core_;
  std::map<uint64_t, Voter*> voters_;
  std::vector<RouteAgreementCore::Output> out_;  // empty between calls
  std::thread thread_;                           // last: it uses the others
};

bool IsFinal(RouteVerdict::Kind kind) {
  return kind == RouteVerdict::Kind::kIdentity || kind == RouteVerdict::Kind::kRefused;
}

void FillVerdict(const RouteVerdict& verdict, v1::RouteVerdict* message) {
  switch (verdict.kind) {
    case RouteVerdict::Kind::kWaiting:
      message->mutable_waiting()->set_missing_count(verdict.missing_count);
      for (uint32_t index : verdict.missing) message->mutable_waiting()->add_missing(index);
      return;
    case RouteVerdict::Kind::kPrepare:
      message->set_prepare(true);
      message->set_round(verdict.round);
      return;
    case RouteVerdict::Kind::kCommit:
      message->set_commit(true);
      return;
    case RouteVerdict::Kind::kIdentity:
      message->set_identity(verdict.reason);
      return;
    case RouteVerdict::Kind::kRefused:
      message->set_refused(verdict.reason);
      return;
    case RouteVerdict::Kind::kUnknownRound:
      return;  // the stream's status
  }
}

using VoteStream = grpc::ServerBidiReactor<proto::Guarded<v1::RouteVote>, v1::RouteVerdict>;

class VoteReactor final : public WritingReactor<VoteStream, v1::RouteVerdict>, public Voter {
 public:
  // `check`: whether this manager takes proposals for this job.
  using Check = std::function<grpc::Status(const std::string& job)>;

  VoteReactor(std::shared_ptr<RouteAgreements> agreements, Check check)
      : agreements_(std::move(agreements)), check_(std::move(check)) {
    first_message_.Start(kFirstMessageTimeout, [this] { End(NoFirstMessage()); });
    StartRead(&in_);
  }

  void Send(const RouteVerdict& verdict) override {
    std::lock_guard lock(mutex_);
    if (verdict.kind == RouteVerdict::Kind::kUnknownRound) {
      EndLocked({grpc::StatusCode::FAILED_PRECONDITION, verdict.reason});
      return;
    }
    // A node that does not read is not sent what is old by now.
    if (!pending_.empty() && pending_.back().kind == RouteVerdict::Kind::kWaiting) pending_.pop_back();
    pending_.push_back(verdict);
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Leave(grpc::Status::OK);
      return;
    }
    grpc::Status taken = Take();
    if (!taken.ok()) {
      Leave(taken);
      return;
    }
    in_.Clear();
    std::lock_guard lock(mutex_);
    if (!ended_) StartRead(&in_);
  }

  void OnDone() override {
    if (peer_ != 0) agreements_->Gone(peer_);
    delete this;
  }

 private:
  ~VoteReactor() override = default;

  grpc::Status Take() {
    first_message_.Stop();
    if (!in_.refusal.ok()) return proto::RefusalStatus(in_.refusal);
    const v1::RouteVote& in = in_.message;
    switch (in.kind_case()) {
      case v1::RouteVote::kProposal: {
        if (peer_ != 0) return {grpc::StatusCode::INVALID_ARGUMENT, "a second proposal"};
        const v1::RouteProposal& message = in.proposal();
        grpc::Status allowed = check_(message.job());
        if (!allowed.ok()) return allowed;
        RouteProposal proposal;
        proposal.nodes = message.nodes();
        proposal.index = message.index();
        proposal.table_digest = message.table_digest();
        proposal.plan_digest = message.plan_digest();
        proposal.reason = message.reason();
        proposal.in_doubt = message.in_doubt();
        peer_ = agreements_->Propose(this, std::move(proposal));
        return grpc::Status::OK;
      }
      case v1::RouteVote::kAcknowledged:
      case v1::RouteVote::kWritten:
        if (peer_ == 0) return {grpc::StatusCode::INVALID_ARGUMENT, "the first vote is not a proposal"};
        if (in.kind_case() == v1::RouteVote::kAcknowledged) {
          agreements_->Acknowledge(peer_);
        } else {
          agreements_->Written(peer_);
        }
        return grpc::Status::OK;
      case v1::RouteVote::KIND_NOT_SET:  // a later release's vote
        return grpc::Status::OK;
    }
    return grpc::Status::OK;
  }

  void Leave(const grpc::Status& status) {
    if (peer_ != 0) agreements_->Gone(peer_);
    End(status);
  }

  bool FillNext(v1::RouteVerdict* message) override {
    if (said_final_) {
      EndLocked(grpc::Status::OK);
      return false;
    }
    if (pending_.empty()) return false;
    FillVerdict(pending_.front(), message);
    said_final_ = IsFinal(pending_.front().kind);
    pending_.pop_front();
    return true;
  }

  const std::shared_ptr<RouteAgreements> agreements_;
  const Check check_;
  StreamAlarm first_message_;
  proto::Guarded<v1::RouteVote> in_;
  uint64_t peer_ = 0;  // 0: no proposal yet

  // With the mutex.
  bool said_final_ = false;
  std::deque<RouteVerdict> pending_;
};

class RouteAgreementService final : public v1::RouteAgreement::CallbackService {
 public:
  explicit RouteAgreementService(JobShape shape) : shape_(std::move(shape)) {
    MarkMethodCallback(0, proto::GuardedStream<v1::RouteVote, v1::RouteVerdict>([this](grpc::CallbackServerContext*) {
                         return new VoteReactor(agreements_,
                                                [this](const std::string& job) { return CheckJob(job, shape_); });
                       }));
  }

 private:
  const std::shared_ptr<RouteAgreements> agreements_ = std::make_shared<RouteAgreements>();
  const JobShape shape_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRouteAgreementService(const JobShape& shape) {
  return std::make_unique<RouteAgreementService>(shape);
}

}  // namespace taskd::manager
