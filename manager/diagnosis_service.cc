#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "manager/diagnosis_core.h"
#include "manager/job_name.h"
#include "manager/parts_reactor.h"
#include "manager/services.h"
#include "manager/writing_reactor.h"
#include "proto/diagnosis_messages.h"
#include "proto/guarded.h"
#include "taskd/v1/diagnosis.grpc.pb.h"

namespace taskd::manager {
namespace {

using ReportPtr = std::shared_ptr<const diagnosis::Report>;

// One watcher. A client that reads slowly holds nobody up: what it was not told yet is one newest report.
class WatchReactor final : public PushReactor<v1::DiagnosisReport>, public ReportSink {
 public:
  WatchReactor(std::shared_ptr<DiagnosisCore> core, std::string job, const grpc::Status& refusal)
      : core_(std::move(core)), job_(std::move(job)) {
    if (!refusal.ok()) {
      End(refusal);
    } else if (!core_->Subscribe(this)) {
      Close();
    }
  }

  void Changed(ReportPtr report) override {
    std::lock_guard lock(mutex_);
    pending_ = std::move(report);
    WriteNext();
  }
  void Close() override { End({grpc::StatusCode::UNAVAILABLE, "the manager is ending"}); }
  void OnDone() override {
    core_->Unsubscribe(this);
    delete this;
  }

 private:
  bool FillNext(v1::DiagnosisReport* message) override {
    if (pending_ == nullptr) return false;
    FillReport(*pending_, job_, message);
    pending_.reset();
    return true;
  }

  const std::shared_ptr<DiagnosisCore> core_;
  const std::string job_;
  ReportPtr pending_;
};

class DiagnosisService final : public v1::Diagnosis::CallbackService {
 public:
  DiagnosisService(std::shared_ptr<DiagnosisCore> core, JobShape shape)
      : core_(std::move(core)), shape_(std::move(shape)) {
    MarkMethodCallback(
        0, GuardedUnary<v1::GetReportRequest, v1::DiagnosisReport>(
               [this](auto* context, auto* request, auto* reply) { return GetReport(context, request, reply); }));
    MarkMethodCallback(1, GuardedServerStream<v1::GetReportRequest, v1::DiagnosisReport>(
                              [this](auto* context, auto* request) { return WatchReports(context, request); }));
    MarkMethodCallback(2, GuardedServerStream<v1::GetReportRequest, v1::DiagnosisReport>(
                              [this](auto* context, auto* request) { return ReportInParts(context, request); }));
  }

  grpc::ServerUnaryReactor* GetReport(grpc::CallbackServerContext* context, const v1::GetReportRequest* request,
                                      v1::DiagnosisReport* reply) override {
    grpc::Status allowed = CheckJob(request->job(), shape_);
    if (allowed.ok()) FillReport(*core_->report(), JobName(request->job()), reply);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(allowed);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::DiagnosisReport>* WatchReports(grpc::CallbackServerContext*,
                                                              const v1::GetReportRequest* request) override {
    return new WatchReactor(core_, JobName(request->job()), CheckJob(request->job(), shape_));
  }

  grpc::ServerWriteReactor<v1::DiagnosisReport>* ReportInParts(grpc::CallbackServerContext* context,
                                                               const v1::GetReportRequest* request) override {
    auto* reactor = new PartsReactor<v1::DiagnosisReport>(context, &under_way_, CheckJob(request->job(), shape_));
    if (!reactor->open()) return reactor;
    reactor->Begin([report = core_->report(), job = JobName(request->job()), next = size_t{0},
                    first = true](v1::DiagnosisReport* part) mutable {
      if (!std::exchange(first, false) && next == report->verdicts.size()) return false;
      if (next == 0) FillReportHead(*report, job, part);
      for (size_t bytes = 0; next < report->verdicts.size() && bytes < kPartBytes; ++next) {
        v1::Verdict* verdict = part->add_verdicts();
        FillVerdict(report->verdicts[next], verdict);
        bytes += verdict->ByteSizeLong();
      }
      return true;
    });
    return reactor;
  }

 private:
  const std::string& JobName(const std::string& asked) const { return shape_.job.empty() ? asked : shape_.job; }

  const std::shared_ptr<DiagnosisCore> core_;
  const JobShape shape_;
  std::atomic<int> under_way_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDiagnosisService(std::shared_ptr<DiagnosisCore> core, const JobShape& shape) {
  return std::make_unique<DiagnosisService>(std::move(core), shape);
}

}  // namespace taskd::manager
