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
  if (watch_timer_) loop_->Cancel(*watch_timer_);
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
  join.set_node_timeout_ms(static_cast<uint32_t>(options.node_timeout_s * 1000));
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

void JobMember::Ended(int code, const std::string& reason, int signal) {
  if (std::exchange(ended_, true)) return;
  v1::NodeReport report;
  report.mutable_ended()->set_code(code);
  report.mutable_ended()->set_reason(ValidUtf8(reason));
  report.mutable_ended()->set_signal(signal);
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
  heard_ns_ = clock_.Look(EventLoop::NowNs());
  connected_ = true;
  if (!std::exchange(was_connected_, true)) Watch();
  switch (notice.kind_case()) {
    case v1::JobNotice::kState:
      state_ = notice.state();
      return callbacks_.state();
    case v1::JobNotice::kEnd:
      ended_ = job_ended_ = true;
      return callbacks_.end(notice.end().code(), notice.end().reason());
    case v1::JobNotice::kRefused:
      return Fail(absl::StrCat("refused by the manager at ", plan_->manager, ": ", notice.refused()));
    case v1::JobNotice::kMpirun:
      return callbacks_.mpirun(notice.mpirun());
    case v1::JobNotice::kRemote:
      return callbacks_.remote(notice.remote());
    default:
      return;
  }
}

void JobMember::OnLost(const absl::Status& status) {
  if (std::exchange(connected_, false)) lost_ns_ = clock_.Look(EventLoop::NowNs());
  lost_why_ = std::string(status.message());
  if (absl::IsUnauthenticated(status)) return Fail(lost_why_);
  if (absl::IsUnimplemented(status) || absl::IsInvalidArgument(status)) {
    Fail(absl::StrCat("the manager at ", plan_->manager, " does not know this job: ", lost_why_));
  }
}

void JobMember::Fail(const std::string& why) {
  failed_ = true;
  callbacks_.failed(why);
}

void JobMember::Watch() {
  watch_timer_ = loop_->RunAfter(kLookNs, [this] {
    watch_timer_.reset();
    Look();
    if (!failed_ && !job_ended_) Watch();
  });
}

// A manager outside the job may come back at any time; node 0's own is gone, or stopped, with node 0.
void JobMember::Look() {
  const int64_t seen_ns = clock_.Look(EventLoop::NowNs());
  if (connected_) {
    const int64_t timeout_ns = int64_t{state_.node_timeout_ms()} * 1'000'000;
    if (timeout_ns == 0 || seen_ns - heard_ns_ < timeout_ns) return;
    const std::string silent = absl::StrCat("was silent for ", timeout_ns / 1'000'000'000, " s");
    if (state_.hosted() && !options_.hosts_manager)
      return Fail(absl::StrCat(NodeName(0), ": its `taskd run` ", silent));
    spdlog::warn("the job's manager at {} {}: connecting anew", plan_->manager, silent);
    heard_ns_ = seen_ns;
    client_->Reopen();
  } else if (state_.hosted()) {
    const int64_t patience_ns = options_.hosts_manager ? kOwnManagerGoneNs : kNodeZeroGoneNs;
    if (seen_ns - lost_ns_ < patience_ns) return;
    Fail(options_.hosts_manager ? absl::StrCat("the job's manager does not come back: ", lost_why_)
                                : absl::StrCat(NodeName(0), ": its `taskd run` is gone"));
  }
}

}  // namespace taskd::modes
