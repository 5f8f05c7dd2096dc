#include "agent/route/route_agreement_client.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/address.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "grpcpp/channel.h"
#include "taskd/v1/route_agreement.grpc.pb.h"

namespace taskd::route {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kMaxNodes = 65536;
constexpr size_t kMaxReasonBytes = 1024;
constexpr milliseconds kPause{200};
constexpr milliseconds kReportWritten{2000};

// One line, and UTF-8: a message must be, and a path in a reason need not.
std::string OneLine(const std::string& text) { return Printable(text, kMaxReasonBytes); }

std::string MissingNodes(const v1::RouteWaiting& waiting) {
  const auto more = static_cast<int64_t>(waiting.missing_count()) - waiting.missing_size();
  return absl::StrCat(waiting.missing_count() == 1 ? "node " : "nodes ", absl::StrJoin(waiting.missing(), ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "",
                      waiting.missing_count() == 1 ? " is missing" : " are missing");
}

// One stream to the manager. A thread reads it, so that the owner can wait with a deadline.
class VoteStream {
 public:
  struct Event {
    std::optional<v1::RouteVerdict> verdict;  // without: the stream has ended
    grpc::Status ended;
  };

  VoteStream(v1::RouteAgreement::Stub* stub, v1::RouteVote proposal) : proposal_(std::move(proposal)) {
    stream_ = stub->Agree(&context_);
    reader_ = std::thread([this] { Read(); });
  }
  // Breaks the stream, if it has not ended.
  ~VoteStream() {
    context_.TryCancel();
    reader_.join();
  }
  VoteStream(const VoteStream&) = delete;
  VoteStream& operator=(const VoteStream&) = delete;

  // Answers a verdict. That it does not arrive shows as the end of the stream.
  void Vote(const v1::RouteVote& vote) { stream_->Write(vote); }
  void VotesDone() { stream_->WritesDone(); }

  // What came is taken first, however late it is. None: nothing came until `deadline`.
  std::optional<Event> Next(steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return !events_.empty(); })) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  void Read() {
    v1::RouteVerdict verdict;
    if (stream_->Write(proposal_)) {  // here, because it waits for the connection
      while (stream_->Read(&verdict)) Add({std::move(verdict), {}});
    }
    grpc::Status status = stream_->Finish();
    Add({std::nullopt, std::move(status)});
  }
  void Add(Event event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  const v1::RouteVote proposal_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RouteVote, v1::RouteVerdict>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::thread reader_;  // last: it uses the others
};

class Client final : public RouteAgreement {
 public:
  Client(AgreeOptions options, std::unique_ptr<proto::ManagerDial> dial)
      : options_(std::move(options)), dial_(std::move(dial)) {}

  absl::StatusOr<RouteDecision> Decide(const route::PlannedRoute& planned) override {
    deadline_ = steady_clock::now() + std::chrono::seconds(options_.timeout_s);
    v1::RouteVote vote;
    v1::RouteProposal* proposal = vote.mutable_proposal();
    proposal->set_job(ValidUtf8(options_.job));
    proposal->set_nodes(static_cast<uint32_t>(options_.nodes));
    proposal->set_index(static_cast<uint32_t>(options_.index));
    proposal->set_table_digest(planned.table_digest);
    proposal->set_plan_digest(planned.plan_digest);
    proposal->set_reason(OneLine(planned.reason));
    while (true) {
      proposal->set_in_doubt(round_);
      // It could be made once, so it can be made.
      stub_ = v1::RouteAgreement::NewStub(dial_->Channel().value());
      stream_ = std::make_unique<VoteStream>(stub_.get(), vote);
      std::optional<absl::StatusOr<RouteDecision>> decision = Listen();
      if (decision.has_value()) {
        // A node that falls back by itself must not be asked any more.
        if (!decision->ok() || !(*decision)->adopt) stream_.reset();
        return *std::move(decision);
      }
      std::this_thread::sleep_until(std::min(steady_clock::now() + kPause, Limit()));
      dial_->Reconnect(kPause);
    }
  }

  void Written() override {
    if (stream_ == nullptr) return;
    const steady_clock::time_point deadline = steady_clock::now() + kReportWritten;
    v1::RouteVote vote;
    vote.set_written(true);
    stream_->Vote(vote);
    stream_->VotesDone();
    while (std::optional<VoteStream::Event> event = stream_->Next(deadline)) {
      if (!event->verdict.has_value()) break;
    }
    stream_.reset();
  }

 private:
  bool acknowledged() const { return round_ != 0; }
  steady_clock::time_point Limit() const { return acknowledged() ? deadline_ + kInDoubtWait : deadline_; }

  // Until there is a decision. None: the stream has broken, and there is time for another.
  std::optional<absl::StatusOr<RouteDecision>> Listen() {
    while (true) {
      std::optional<VoteStream::Event> event = stream_->Next(Limit());
      if (!event.has_value()) return GiveUp();
      if (!event->verdict.has_value()) return Ended(event->ended);
      const v1::RouteVerdict& verdict = *event->verdict;
      switch (verdict.kind_case()) {
        case v1::RouteVerdict::kWaiting:
          waiting_ = MissingNodes(verdict.waiting());
          break;
        case v1::RouteVerdict::kPrepare:
          if (!acknowledged()) {
            if (steady_clock::now() >= deadline_) return GiveUp();
            if (verdict.round() == 0) return absl::InternalError("the manager asks for a round without a number");
            round_ = verdict.round();
            v1::RouteVote vote;
            vote.set_acknowledged(true);
            stream_->Vote(vote);
          }
          break;
        case v1::RouteVerdict::kCommit:
          if (!acknowledged()) return absl::InternalError("the manager commits what this node has not acknowledged");
          return RouteDecision{true, ""};
        case v1::RouteVerdict::kIdentity:
          return RouteDecision{false, OneLine(verdict.identity())};
        case v1::RouteVerdict::kRefused:
          return absl::FailedPreconditionError(
              absl::StrCat("--manager ", options_.manager, " refuses the plan: ", OneLine(verdict.refused())));
        case v1::RouteVerdict::KIND_NOT_SET:  // a later release's verdict
          break;
      }
    }
  }

  std::optional<absl::StatusOr<RouteDecision>> Ended(const grpc::Status& ended) {
    const absl::Status status =
        dial_->Explain(static_cast<absl::StatusCode>(ended.error_code()), ended.error_message());
    const std::string why = status.ok() ? "it has ended the stream" : OneLine(std::string(status.message()));
    const std::string line = absl::StrCat("--manager ", options_.manager, " does not take the plan: ", why);
    switch (status.code()) {
      case absl::StatusCode::kUnauthenticated:
      case absl::StatusCode::kPermissionDenied:
        return absl::Status(status.code(), line);
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kUnimplemented:
      case absl::StatusCode::kFailedPrecondition:
        if (acknowledged()) return InDoubt(why);
        return absl::FailedPreconditionError(line);
      default:
        lost_ = why;
        waiting_.clear();
        if (steady_clock::now() >= Limit()) return GiveUp();
        return std::nullopt;
    }
  }

  absl::StatusOr<RouteDecision> GiveUp() const {
    if (acknowledged()) return InDoubt(lost_.empty() ? "it says nothing" : lost_);
    std::string what = absl::StrCat("no agreement within ", options_.timeout_s, " s: ");
    if (!waiting_.empty()) {
      absl::StrAppend(&what, waiting_);
    } else {
      absl::StrAppend(&what, "no answer of the manager ", options_.manager, lost_.empty() ? "" : ": ", lost_);
    }
    return RouteDecision{false, what};
  }

  absl::Status InDoubt(const std::string& why) const {
    return absl::UnavailableError(absl::StrCat(
        "--manager ", options_.manager, " has not said whether the plan that node ", options_.index,
        " acknowledged was adopted (", why, "); nothing is written, but the other nodes may have adopted it"));
  }

  const AgreeOptions options_;
  const std::unique_ptr<proto::ManagerDial> dial_;
  std::unique_ptr<v1::RouteAgreement::Stub> stub_;
  steady_clock::time_point deadline_;
  uint64_t round_ = 0;   // acknowledged; 0: none
  std::string waiting_;  // the manager's last report of who is missing
  std::string lost_;     // why the last stream broke
  std::unique_ptr<VoteStream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RouteAgreement>> RouteAgreement::Create(const AgreeOptions& options) {
  absl::StatusOr<HostPort> address = ParseHostPort("--manager", options.manager);
  if (!address.ok()) return address.status();
  if (address->port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--manager: '", options.manager, "': no manager has port 0"));
  }
  if (options.nodes < 1 || options.nodes > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes: ", options.nodes, " is not in 1..", kMaxNodes));
  }
  if (options.index < 0 || options.index >= options.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("--index: ", options.index, " is not in 0..", options.nodes - 1,
                                                   " (--nodes ", options.nodes, ")"));
  }
  if (options.timeout_s < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--agree-timeout: ", options.timeout_s, " is not 1 s or more"));
  }
  auto dial = std::make_unique<proto::ManagerDial>(options.manager, options.security);
  if (absl::Status status = dial->Channel().status(); !status.ok()) return status;
  return std::make_unique<Client>(options, std::move(dial));
}

}  // namespace taskd::route
