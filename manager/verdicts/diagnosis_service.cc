#include "manager/verdicts/diagnosis_service.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "manager/rpc/parts_reactor.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/switch/job_name.h"
#include "proto/diagnosis_messages.h"
#include "proto/guarded.h"
#include "taskd/v1/diagnosis.grpc.pb.h"

namespace taskd::manager {
namespace {

using ReportPtr = std::shared_ptr<const diagnosis::Report>;

// A report as messages that are merged.
class ReportParts {
 public:
  ReportParts(ReportPtr report, std::string job) : report_(std::move(report)), job_(std::move(job)) {}

  // All of it has been given out.
  bool over() const { return next_ > 0 && next_ == report_->verdicts.size() + 1; }
  // Fills the next part; not once it is over.
  void Fill(v1::DiagnosisReport* part) {
    if (next_ == 0) {
      proto::FillReportHead(*report_, job_, part);
      ++next_;
    }
    for (size_t bytes = 0; !over() && bytes < kPartBytes; ++next_) {
      v1::Verdict* verdict = part->add_verdicts();
      proto::FillVerdict(report_->verdicts[next_ - 1], verdict);
      bytes += verdict->ByteSizeLong();
    }
  }

 private:
  ReportPtr report_;
  std::string job_;
  size_t next_ = 0;  // 0: the head, then the verdicts
};

// One watcher. A client that reads slowly holds nobody up: what it was not sent yet is the rest of a report, and one
// newest.
class ReportReactor final : public WatcherReactor<v1::DiagnosisReport, DiagnosisCore, ReportSink> {
 public:
  ReportReactor(std::shared_ptr<DiagnosisCore> core, std::string job, bool in_parts, const grpc::Status& refusal)
      : WatcherReactor(std::move(core)), job_(std::move(job)), in_parts_(in_parts) {
    Start(refusal);
  }

  void Changed(ReportPtr report) override {
    std::lock_guard lock(mutex_);
    pending_ = std::move(report);
    WriteNext();
  }

 private:
  bool FillNext(v1::DiagnosisReport* message) override {
    if (!in_parts_) {
      if (pending_ == nullptr) return false;
      proto::FillReport(*std::exchange(pending_, nullptr), job_, message);
      return true;
    }
    if (!sending_.has_value()) {
      if (pending_ == nullptr) return false;
      sending_.emplace(std::exchange(pending_, nullptr), job_);
    }
    sending_->Fill(message);
    message->set_more(!sending_->over());
    if (sending_->over()) sending_.reset();
    return true;
  }

  const std::string job_;
  const bool in_parts_;
  ReportPtr pending_;
  std::optional<ReportParts> sending_;  // with in_parts_: what is left of the report that the client is being sent
};

class DiagnosisService final : public v1::Diagnosis::CallbackService {
 public:
  DiagnosisService(std::shared_ptr<DiagnosisCore> core, JobShape shape, FillHang fill_hang)
      : core_(std::move(core)), shape_(std::move(shape)), fill_hang_(std::move(fill_hang)) {
    MarkMethodCallback(
        0, proto::GuardedUnary<v1::GetReportRequest, v1::DiagnosisReport>(
               [this](auto* context, auto* request, auto* reply) { return GetReport(context, request, reply); }));
    MarkMethodCallback(1, proto::GuardedServerStream<v1::GetReportRequest, v1::DiagnosisReport>(
                              [this](auto* context, auto* request) { return WatchReports(context, request); }));
    MarkMethodCallback(2, proto::GuardedServerStream<v1::GetReportRequest, v1::DiagnosisReport>(
                              [this](auto* context, auto* request) { return ReportInParts(context, request); }));
    MarkMethodCallback(3,
                       proto::GuardedUnary<v1::WhyRequest, v1::RankTrace>(
                           [this](auto* context, auto* request, auto* reply) { return Why(context, request, reply); }));
  }

  grpc::ServerUnaryReactor* GetReport(grpc::CallbackServerContext* context, const v1::GetReportRequest* request,
                                      v1::DiagnosisReport* reply) override {
    grpc::Status allowed = CheckJob(request->job(), shape_);
    if (allowed.ok()) {
      proto::FillReport(*core_->report(), JobName(request->job()), reply);
      if (fill_hang_) fill_hang_(reply);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(allowed);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::DiagnosisReport>* WatchReports(grpc::CallbackServerContext*,
                                                              const v1::GetReportRequest* request) override {
    return new ReportReactor(core_, JobName(request->job()), request->in_parts(), CheckJob(request->job(), shape_));
  }

  grpc::ServerWriteReactor<v1::DiagnosisReport>* ReportInParts(grpc::CallbackServerContext* context,
                                                               const v1::GetReportRequest* request) override {
    auto* reactor = new PartsReactor<v1::DiagnosisReport>(context, &under_way_, CheckJob(request->job(), shape_));
    if (!reactor->open()) return reactor;
    reactor->Begin([parts = ReportParts(core_->report(), JobName(request->job())),
                    fill_hang = fill_hang_](v1::DiagnosisReport* part) mutable {
      if (parts.over()) return false;
      parts.Fill(part);
      if (FillHang once = std::exchange(fill_hang, nullptr); once) once(part);
      return true;
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context, const v1::WhyRequest* request,
                                v1::RankTrace* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (grpc::Status allowed = CheckJob(request->job(), shape_); !allowed.ok()) {
      reactor->Finish(allowed);
      return reactor;
    }
    core_->Why(request->rank(), [fill_hang = fill_hang_, reactor, reply](absl::StatusOr<diagnosis::RankTrace> trace) {
      if (trace.ok()) {
        proto::FillTrace(*trace, reply);
        // No step of the rank tells of it.
        v1::DiagnosisReport hung;
        if (fill_hang) fill_hang(&hung);
        if (hung.has_hang()) reply->set_text(absl::StrCat(hung.hang().text(), "; ", reply->text()));
        return reactor->Finish(grpc::Status::OK);
      }
      const auto code = absl::IsNotFound(trace.status()) ? grpc::StatusCode::OUT_OF_RANGE
                                                         : static_cast<grpc::StatusCode>(trace.status().code());
      reactor->Finish({code, std::string(trace.status().message())});
    });
    return reactor;
  }

 private:
  const std::string& JobName(const std::string& asked) const {
    return shape_.job.empty() && !asked.empty() ? asked : shape_.name();
  }

  const std::shared_ptr<DiagnosisCore> core_;
  const JobShape shape_;
  const FillHang fill_hang_;
  std::atomic<int> under_way_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDiagnosisService(std::shared_ptr<DiagnosisCore> core, const JobShape& shape,
                                                    FillHang fill_hang) {
  return std::make_unique<DiagnosisService>(std::move(core), shape, std::move(fill_hang));
}

}  // namespace taskd::manager
