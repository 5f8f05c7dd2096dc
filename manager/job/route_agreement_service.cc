#include "manager/job/route_agreement_service.h"

#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "manager/job/route_agreement.h"
#include "manager/job/stream_hub.h"
#include "manager/switch/core.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/route_agreement.grpc.pb.h"

namespace taskd::manager {
namespace {

uint64_t RandomRound() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// The core as the hub wants it.
class Agreements {
 public:
  using Outputs = std::vector<RouteAgreementCore::Output>;

  Outputs Propose(uint64_t peer, RouteProposal proposal, int64_t now_ns) {
    return Ask([&](auto* out) { core_.Propose(peer, std::move(proposal), At(now_ns), out); });
  }
  Outputs Acknowledge(uint64_t peer, int64_t now_ns) {
    return Ask([&](auto* out) { core_.Acknowledge(peer, At(now_ns), out); });
  }
  Outputs Written(uint64_t peer) {
    core_.Written(peer);
    return {};
  }
  Outputs Lost(uint64_t peer, int64_t now_ns) {
    return Ask([&](auto* out) { core_.Gone(peer, At(now_ns), out); });
  }
  Outputs Tick(int64_t now_ns) {
    return Ask([&](auto* out) { core_.Tick(At(now_ns), out); });
  }
  int64_t next_tick_ns() const {
    const std::optional<RouteAgreementCore::Time> next = core_.NextTick();
    return next ? std::chrono::nanoseconds(next->time_since_epoch()).count() : std::numeric_limits<int64_t>::max();
  }

 private:
  static RouteAgreementCore::Time At(int64_t ns) { return RouteAgreementCore::Time(std::chrono::nanoseconds(ns)); }

  template <typename Event>
  static Outputs Ask(const Event& event) {
    Outputs outputs;
    event(&outputs);
    return outputs;
  }

  RouteAgreementCore core_{RandomRound()};
};

using RouteHub = StreamHub<Agreements, RouteVerdict>;

RouteProposal ReadProposal(const v1::RouteProposal& message) {
  RouteProposal proposal;
  proposal.nodes = message.nodes();
  proposal.index = message.index();
  proposal.table_digest = message.table_digest();
  proposal.plan_digest = message.plan_digest();
  proposal.reason = message.reason();
  proposal.in_doubt = message.in_doubt();
  return proposal;
}

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

class VoteReactor final : public HubReactor<RouteHub, v1::RouteVote, v1::RouteVerdict> {
 public:
  VoteReactor(std::shared_ptr<RouteHub> hub, const JobShape* shape) : HubReactor(std::move(hub)), shape_(shape) {
    StartOrEnd(grpc::Status::OK);
  }

  void Take(RouteVerdict verdict) override {
    std::lock_guard lock(mutex_);
    if (verdict.kind == RouteVerdict::Kind::kUnknownRound) {
      EndLocked({grpc::StatusCode::FAILED_PRECONDITION, verdict.reason});
      return;
    }
    // A node that does not read is not sent what is old by now.
    if (!pending_.empty() && pending_.back().kind == RouteVerdict::Kind::kWaiting) pending_.pop_back();
    pending_.push_back(std::move(verdict));
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    const grpc::Status status = ok ? Handle() : grpc::Status::OK;
    if (ok && status.ok()) {
      ReadOn();
    } else {
      Leave(status);
    }
  }

 private:
  ~VoteReactor() override = default;

  grpc::Status Handle() {
    const bool is_first = IsFirst();
    if (!in_.refusal.ok()) return proto::RefusalStatus(in_.refusal);
    const v1::RouteVote& in = in_.message;
    switch (in.kind_case()) {
      case v1::RouteVote::kProposal: {
        if (!is_first) return {grpc::StatusCode::INVALID_ARGUMENT, "a second proposal"};
        grpc::Status allowed = CheckJob(in.proposal().job(), *shape_);
        if (!allowed.ok()) return allowed;
        return Join([&](Agreements& core, uint64_t peer, int64_t now) {
          return core.Propose(peer, ReadProposal(in.proposal()), now);
        });
      }
      case v1::RouteVote::kAcknowledged:
      case v1::RouteVote::kWritten:
        if (is_first) return {grpc::StatusCode::INVALID_ARGUMENT, "the first vote is not a proposal"};
        hub_->Feed([&](Agreements& core, int64_t now) {
          return in.kind_case() == v1::RouteVote::kWritten ? core.Written(peer_) : core.Acknowledge(peer_, now);
        });
        return grpc::Status::OK;
      case v1::RouteVote::KIND_NOT_SET:  // a later release's vote
        return grpc::Status::OK;
    }
    return grpc::Status::OK;
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

  const JobShape* const shape_;  // the service's

  // With the mutex.
  bool said_final_ = false;
  std::deque<RouteVerdict> pending_;
};

class RouteAgreementService final : public v1::RouteAgreement::CallbackService {
 public:
  explicit RouteAgreementService(JobShape shape) : shape_(std::move(shape)) {
    MarkMethodCallback(0, proto::GuardedStream<v1::RouteVote, v1::RouteVerdict>(
                              [this](grpc::CallbackServerContext*) { return new VoteReactor(hub_, &shape_); }));
  }

 private:
  const std::shared_ptr<RouteHub> hub_ = std::make_shared<RouteHub>(nullptr);
  const JobShape shape_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRouteAgreementService(const JobShape& shape) {
  return std::make_unique<RouteAgreementService>(shape);
}

}  // namespace taskd::manager
