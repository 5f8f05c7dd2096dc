#include "agent/modes/job_member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/utf8.h"

namespace taskd::modes {
namespace {

constexpr int64_t kLookNs = 500'000'000;
constexpr int64_t kNodeZeroGoneNs = 6'000'000'000;     // one that only lost its connection is back earlier
constexpr int64_t kOwnManagerGoneNs = 60'000'000'000;  // it is started again
constexpr size_t kMissingShown = 8;

}  // namespace

// Short: each node sends it.
std::string PlanText(const ModePlan& plan) {
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a: differences by mistake, not by intent
  for (const ModeNode& node : plan.nodes) {
    for (unsigned char c : absl::StrCat(node.name, ":", node.cards, node.serves ? "s" : "", ",")) {
      hash = (hash ^ c) * 1099511628211ULL;
    }
  }
  return absl::StrCat("mode ", std::string(ModeName(plan.mode)), ", nodes ", plan.nodes.front().name,
                      plan.nodes.size() > 1 ? absl::StrCat(" .. ", plan.nodes.back().name) : "", " (", absl::Hex(hash),
                      ")");
}

JobMember::JobMember(EventLoop* loop, const ModePlan* plan, Callbacks callbacks)
    : loop_(loop), plan_(plan), callbacks_(std::move(callbacks)), clock_(kLookNs) {}

JobMember::~JobMember() {
  client_.reset();
  if (gone_timer_) loop_->Cancel(*gone_timer_);
}

absl::Status JobMember::Join(const Options& options) {
  options_ = options;
  if (!has_manager()) return absl::OkStatus();
  JobLinkClient::Options client;
  client.manager = options.dial;
  client.security = options.security;
  v1::JoinJob& join = client.join;
  join.set_index(static_cast<uint32_t>(plan_->index));
  join.set_nodes(static_cast<uint32_t>(plan_->nodes.size()));
  join.set_serves(plan_->serves);
  join.set_run_id(options.run_id);
  join.set_plan(ValidUtf8(PlanText(*plan_)));
  join.set_remote_start(options.remote_start);
  const bool listed = plan_->index < static_cast<int>(plan_->nodes.size());
  join.set_name(ValidUtf8(listed ? plan_->nodes[static_cast<size_t>(plan_->index)].name : plan_->role));
  for (const std::string& address : options.addresses) join.add_addresses(ValidUtf8(address));
  // The client's threads end before this object.
  JobLinkClient::Callbacks callbacks;
  callbacks.notice = [this](const v1::JobNotice& notice) { loop_->Post([this, notice] { On(notice); }); };
  callbacks.lost = [this](const absl::Status& status) { loop_->Post([this, status] { OnLost(status); }); };
  absl::StatusOr<std::unique_ptr<JobLinkClient>> started = JobLinkClient::Start(std::move(client), callbacks);
  if (!started.ok()) return started.status();
  client_ = *std::move(started);
  return absl::OkStatus();
}

bool JobMember::MayStart() const {
  if (!has_manager()) return true;
  switch (plan_->start) {
    case StartRule::kAtOnce:
      return true;
    case StartRule::kAfterFirst:
      return state_.first_joined();
    case StartRule::kAfterAll:
      return state_.all_joined();
    case StartRule::kAfterReady:
      return state_.all_joined() && state_.all_ready();
  }
  return true;
}

std::string JobMember::NodeName(size_t index) const {
  return index < plan_->nodes.size() ? absl::StrCat("node ", index, " (", plan_->nodes[index].name, ")")
                                     : absl::StrCat("node ", index);
}

std::string JobMember::Missing() const {
  if (!connected_) {
    return absl::StrCat(NodeName(0), " is missing: its manager at ", plan_->manager, " does not answer (", lost_why_,
                        ")");
  }
  if (plan_->start == StartRule::kAfterFirst && !state_.first_joined()) return absl::StrCat(NodeName(0), " is missing");
  std::vector<std::string> names;
  for (uint32_t index : state_.missing()) {
    if (names.size() < kMissingShown) names.push_back(NodeName(index));
  }
  const size_t count = std::max<size_t>(state_.missing_count(), names.size());
  return absl::StrCat(absl::StrJoin(names, ", "),
                      count > names.size() ? absl::StrCat(" and ", count - names.size(), " more") : "",
                      count == 1 ? " is " : " are ", state_.all_joined() ? "not ready" : "missing");
}

void JobMember::Send(v1::NodeReport report) {
  if (client_ != nullptr) client_->Send(std::move(report));
}

void JobMember::Ready() {
  v1::NodeReport report;
  report.mutable_ready();
  Send(std::move(report));
}

void JobMember::Ended(int code, const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  v1::NodeReport report;
  report.mutable_ended()->set_code(code);
  report.mutable_ended()->set_reason(ValidUtf8(reason));
  Send(std::move(report));
}

void JobMember::Mpirun(uint32_t number, bool ended, int code) {
  v1::NodeReport report;
  report.mutable_mpirun()->set_number(number);
  report.mutable_mpirun()->set_ended(ended);
  report.mutable_mpirun()->set_code(code);
  Send(std::move(report));
}

void JobMember::On(const v1::JobNotice& notice) {
  if (gone_timer_) loop_->Cancel(*std::exchange(gone_timer_, std::nullopt));
  connected_ = was_connected_ = true;
  switch (notice.kind_case()) {
    case v1::JobNotice::kState:
      state_ = notice.state();
      return callbacks_.state();
    case v1::JobNotice::kEnd:
      ended_ = true;
      return callbacks_.end(notice.end().code(), notice.end().reason());
    case v1::JobNotice::kRefused:
      return callbacks_.failed(absl::StrCat("refused by the manager at ", plan_->manager, ": ", notice.refused()));
    case v1::JobNotice::kMpirun:
      return callbacks_.mpirun(notice.mpirun());
    case v1::JobNotice::kRemote:
      return callbacks_.remote(notice.remote());
    default:
      return;
  }
}

void JobMember::OnLost(const absl::Status& status) {
  connected_ = false;
  lost_why_ = std::string(status.message());
  if (absl::IsUnauthenticated(status)) return callbacks_.failed(lost_why_);
  if (absl::IsUnimplemented(status) || absl::IsInvalidArgument(status)) {
    return callbacks_.failed(absl::StrCat("the manager at ", plan_->manager, " does not know this job: ", lost_why_));
  }
  // A manager outside the job may come back at any time; node 0's own is gone with node 0.
  if (!was_connected_ || !state_.hosted() || gone_timer_) return;
  lost_ns_ = clock_.Look(EventLoop::NowNs());
  AwaitReturn();
}

// While this process does not run it does not connect either.
void JobMember::AwaitReturn() {
  gone_timer_ = loop_->RunAfter(kLookNs, [this] {
    const int64_t patience_ns = options_.hosts_manager ? kOwnManagerGoneNs : kNodeZeroGoneNs;
    if (clock_.Look(EventLoop::NowNs()) - lost_ns_ < patience_ns) return AwaitReturn();
    gone_timer_.reset();
    callbacks_.failed(options_.hosts_manager ? absl::StrCat("the job's manager does not come back: ", lost_why_)
                                             : absl::StrCat(NodeName(0), ": its `taskd run` is gone"));
  });
}

}  // namespace taskd::modes
