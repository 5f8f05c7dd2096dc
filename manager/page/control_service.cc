#include "manager/page/control_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/grpcpp.h"
#include "manager/page/job_report.h"
#include "manager/page/status_messages.h"
#include "manager/rpc/parts_reactor.h"
#include "manager/rpc/wait_reactor.h"
#include "manager/supervision/supervision_messages.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "proto/node_messages.h"
#include "taskd/v1/control.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr uint32_t kDefaultTimeoutMs = 10'000;
constexpr uint32_t kMaxTimeoutMs = 600'000;
constexpr int kMaxCalledNodes = kMaxNodes;
constexpr uint32_t kMaxHeatmapSide = 1024;  // rows, steps
constexpr size_t kPartOverheadBytes = 8;    // of each element, beside its own

std::chrono::milliseconds Timeout(uint32_t asked_ms) {
  return std::chrono::milliseconds(asked_ms == 0 ? kDefaultTimeoutMs : std::min(asked_ms, kMaxTimeoutMs));
}

SwitchChange ReadChange(const v1::SetSwitchRequest& request) {
  SwitchChange change;
  auto set = [&](SwitchKind kind, bool has, bool value) {
    if (has) change[static_cast<int>(kind)] = value;
  };
  set(SwitchKind::kStep, request.has_step(), request.step());
  set(SwitchKind::kSaveCheckpoint, request.has_save_checkpoint(), request.save_checkpoint());
  set(SwitchKind::kForward, request.has_fp(), request.fp());
  set(SwitchKind::kDataLoader, request.has_dataloader(), request.dataloader());
  set(SwitchKind::kCommunication, request.has_communication(), request.communication());
  return change;
}

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(const JobSources& sources) : sources_(sources) {
    MarkMethodCallback(
        0, proto::GuardedUnary<v1::SetSwitchRequest, v1::SetSwitchReply>(
               [this](auto* context, auto* request, auto* reply) { return SetSwitch(context, request, reply); }));
    MarkMethodCallback(
        1, proto::GuardedUnary<v1::GetStatusRequest, v1::JobStatus>(
               [this](auto* context, auto* request, auto* reply) { return GetStatus(context, request, reply); }));
    MarkMethodCallback(
        2, proto::GuardedUnary<v1::CallAgentsRequest, v1::CallAgentsReply>(
               [this](auto* context, auto* request, auto* reply) { return CallAgents(context, request, reply); }));
    MarkMethodCallback(3, proto::GuardedServerStream<v1::SetSwitchRequest, v1::SetSwitchReply>(
                              [this](auto* context, auto* request) { return SwitchInParts(context, request); }));
    MarkMethodCallback(4, proto::GuardedServerStream<v1::GetStatusRequest, v1::JobStatus>(
                              [this](auto* context, auto* request) { return StatusInParts(context, request); }));
    MarkMethodCallback(
        5, proto::GuardedUnary<v1::GetReportPageRequest, v1::ReportPage>(
               [this](auto* context, auto* request, auto* reply) { return GetReportPage(context, request, reply); }));
    MarkMethodCallback(
        6, proto::GuardedUnary<v1::GetHeatmapRequest, v1::Heatmap>(
               [this](auto* context, auto* request, auto* reply) { return GetHeatmap(context, request, reply); }));
  }

  grpc::ServerUnaryReactor* SetSwitch(grpc::CallbackServerContext* context, const v1::SetSwitchRequest* request,
                                      v1::SetSwitchReply* reply) override {
    grpc::Status allowed = CheckJob(request->job(), sources_.core->shape());
    if (!allowed.ok()) return Answer(context, allowed);
    SwitchChange change = ReadChange(*request);
    if (change == SwitchChange{}) {
      return Answer(context, NothingToSet());
    }
    SteadyTime since = std::chrono::steady_clock::now();
    SwitchState state = sources_.core->ChangeKinds(change);
    std::chrono::milliseconds timeout = Timeout(request->timeout_ms());
    return new WaitReactor(timeout, [&](WaitReactor* reactor) -> WaitReactor::Expire {
      uint64_t waiter = sources_.core->Wait(
          state.revision, [core = sources_.core, reply, reactor, since, state, job = JobName(request->job()),
                           timeout_s = std::chrono::duration<double>(timeout).count()] {
            std::vector<RankAnswer> answers = core->Answers(state.revision, since, timeout_s);
            FillHead(job, state, answers, reply);
            for (const RankAnswer& answer : answers) proto::FillRankAnswer(answer, reply->add_ranks());
            reactor->Done(grpc::Status::OK);
          });
      return [core = sources_.core, waiter] { core->Expire(waiter); };
    });
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::JobStatus* reply) override {
    grpc::Status allowed = CheckJob(request->job(), sources_.core->shape());
    if (!allowed.ok()) return Answer(context, allowed);
    JobSnapshot snapshot = sources_.core->Snapshot();
    FillJob(snapshot, reply);
    for (const JobSnapshot::Node& node : snapshot.nodes) FillNode(node, reply->add_nodes());
    return Answer(context, grpc::Status::OK);
  }

  grpc::ServerWriteReactor<v1::SetSwitchReply>* SwitchInParts(grpc::CallbackServerContext* context,
                                                              const v1::SetSwitchRequest* request) override {
    grpc::Status refusal = CheckJob(request->job(), sources_.core->shape());
    SwitchChange change = ReadChange(*request);
    if (refusal.ok() && change == SwitchChange{}) refusal = NothingToSet();
    auto* reactor = new PartsReactor<v1::SetSwitchReply>(context, &under_way_, refusal);
    if (!reactor->open()) return reactor;
    SteadyTime since = std::chrono::steady_clock::now();
    SwitchState state = sources_.core->ChangeKinds(change);
    std::chrono::milliseconds timeout = Timeout(request->timeout_ms());
    reactor->BeginLater(timeout, [&](auto* parts) -> std::function<void()> {
      uint64_t waiter =
          sources_.core->Wait(state.revision, [core = sources_.core, parts, since, state, job = JobName(request->job()),
                                               timeout_s = std::chrono::duration<double>(timeout).count()] {
            auto answers =
                std::make_shared<const std::vector<RankAnswer>>(core->Answers(state.revision, since, timeout_s));
            parts->Begin([answers, state, job, next = size_t{0}, first = true](v1::SetSwitchReply* part) mutable {
              if (!std::exchange(first, false) && next == answers->size()) return false;
              if (next == 0) FillHead(job, state, *answers, part);
              for (size_t bytes = 0; next < answers->size() && bytes < kPartBytes; ++next) {
                v1::RankAnswer* rank = part->add_ranks();
                proto::FillRankAnswer((*answers)[next], rank);
                bytes += rank->ByteSizeLong() + kPartOverheadBytes;
              }
              return true;
            });
          });
      return [core = sources_.core, waiter] { core->Expire(waiter); };
    });
    return reactor;
  }

  grpc::ServerWriteReactor<v1::JobStatus>* StatusInParts(grpc::CallbackServerContext* context,
                                                         const v1::GetStatusRequest* request) override {
    auto* reactor =
        new PartsReactor<v1::JobStatus>(context, &under_way_, CheckJob(request->job(), sources_.core->shape()));
    if (!reactor->open()) return reactor;
    auto snapshot = std::make_shared<const JobSnapshot>(sources_.core->Snapshot());
    reactor->Begin([this, snapshot, next = size_t{0}, first = true](v1::JobStatus* part) mutable {
      if (!std::exchange(first, false) && next == snapshot->nodes.size()) return false;
      if (next == 0) FillJob(*snapshot, part);
      for (size_t bytes = 0; next < snapshot->nodes.size() && bytes < kPartBytes; ++next) {
        v1::NodeStatus* node = part->add_nodes();
        FillNode(snapshot->nodes[next], node);
        bytes += node->ByteSizeLong() + kPartOverheadBytes;
      }
      return true;
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* CallAgents(grpc::CallbackServerContext* context, const v1::CallAgentsRequest* request,
                                       v1::CallAgentsReply* reply) override {
    grpc::Status allowed = CheckJob(request->job(), sources_.core->shape());
    if (!allowed.ok()) return Answer(context, allowed);
    AgentCall call{0, request->operator_(), request->args_json()};
    absl::Status valid = CheckAgentCall(call);
    if (!valid.ok()) return Answer(context, proto::RefusalStatus(valid));
    if (request->nodes_size() > kMaxCalledNodes) {
      return Answer(context, {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("nodes: more than ", kMaxCalledNodes)});
    }
    std::vector<int> nodes(request->nodes().begin(), request->nodes().end());
    return new WaitReactor(Timeout(request->timeout_ms()), [&](WaitReactor* reactor) -> WaitReactor::Expire {
      uint64_t id =
          sources_.core->CallAgents(std::move(call), nodes, [reply, reactor](const std::vector<NodeAnswer>& answers) {
            for (const NodeAnswer& answer : answers) {
              v1::CallAgentsReply::Node* out = reply->add_nodes();
              out->set_node(answer.node);
              out->set_ok(answer.ok);
              out->set_message(answer.message);
            }
            reactor->Done(grpc::Status::OK);
          });
      return [core = sources_.core, id] { core->ExpireCall(id); };
    });
  }

  grpc::ServerUnaryReactor* GetReportPage(grpc::CallbackServerContext* context, const v1::GetReportPageRequest* request,
                                          v1::ReportPage* reply) override {
    grpc::Status allowed = CheckJob(request->job(), sources_.core->shape());
    if (!allowed.ok()) return Answer(context, allowed);
    JobReport report = RenderReport(sources_);
    reply->set_html(std::move(report.html));
    reply->set_headline(std::move(report.headline));
    return Answer(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetHeatmap(grpc::CallbackServerContext* context, const v1::GetHeatmapRequest* request,
                                       v1::Heatmap* reply) override {
    grpc::Status allowed = CheckJob(request->job(), sources_.core->shape());
    if (!allowed.ok()) return Answer(context, allowed);
    for (const auto& [name, value] : {std::pair("rows", request->rows()), std::pair("steps", request->steps())}) {
      if (value >= 1 && value <= kMaxHeatmapSide) continue;
      return Answer(context, {grpc::StatusCode::INVALID_ARGUMENT,
                              absl::StrCat(name, ": ", value, " is not a number from 1 to ", kMaxHeatmapSide)});
    }
    const view::History::Heatmap map = sources_.history->Draw(view::History::Value::kOwnTime, 0, INT64_MAX,
                                                              request->steps(), static_cast<int>(request->rows()));
    reply->set_ranks(static_cast<uint32_t>(map.ranks));
    reply->set_ranks_per_row(static_cast<uint32_t>(map.ranks_per_row));
    for (const view::History::StepSummary& step : map.steps) reply->add_steps(step.id.step);
    reply->set_cells(map.cells);
    return Answer(context, grpc::Status::OK);
  }

 private:
  static grpc::Status NothingToSet() {
    return {grpc::StatusCode::INVALID_ARGUMENT, "no kind is named, there is nothing to set"};
  }
  // All but the ranks.
  static void FillHead(const std::string& job, const SwitchState& state, const std::vector<RankAnswer>& answers,
                       v1::SetSwitchReply* reply) {
    reply->set_job(job);
    proto::FillWanted(state, reply->mutable_wanted());
    reply->set_total(static_cast<uint32_t>(answers.size()));
    reply->set_applied(static_cast<uint32_t>(std::count_if(answers.begin(), answers.end(), [](const RankAnswer& one) {
      return one.state == RankAnswer::State::kApplied;
    })));
    reply->set_awaited(static_cast<uint32_t>(
        std::count_if(answers.begin(), answers.end(), [](const RankAnswer& one) { return one.awaited; })));
  }
  // All but the nodes.
  void FillJob(const JobSnapshot& snapshot, v1::JobStatus* reply) const {
    const JobShape& shape = sources_.core->shape();
    reply->set_job(shape.name());
    reply->set_task_id(shape.task_id);
    proto::FillWanted(snapshot.wanted, reply->mutable_wanted());
    reply->set_uptime_s(std::chrono::duration<double>(std::chrono::steady_clock::now() - sources_.started).count());
    reply->set_expected_ranks(static_cast<uint32_t>(shape.nodes * shape.procs_per_node));
    const SupervisionSnapshot supervision = sources_.supervision->Snapshot();
    FillSupervision(supervision, reply->mutable_supervision());
    FillDiagnosis(*sources_.diagnosis->report(), reply->mutable_diagnosis());
    if (supervision.hang.has_value()) {
      const std::string text = supervision.hang_answer().text;
      reply->mutable_diagnosis()->set_headline(absl::StrCat("hung: ", absl::StripPrefix(text, "hang: ")));
    }
    for (const std::string& request : sources_.not_supported) reply->add_not_supported(request);
  }
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  const std::string& JobName(const std::string& asked) const {
    const JobShape& shape = sources_.core->shape();
    return shape.job.empty() && !asked.empty() ? asked : shape.name();
  }

  const JobSources sources_;
  std::atomic<int> under_way_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeControlService(const JobSources& sources) {
  return std::make_unique<ControlService>(sources);
}

}  // namespace taskd::manager
