// Reports and verdicts as messages of taskd.v1, and back.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "diagnosis/rank_trace.h"
#include "diagnosis/verdict.h"
#include "taskd/v1/diagnosis.pb.h"

namespace taskd::proto {

void FillReport(const diagnosis::Report& report, const std::string& job, v1::DiagnosisReport* message);
void FillReportHead(const diagnosis::Report& report, const std::string& job,
                    v1::DiagnosisReport* message);  // no verdicts
// INVALID_ARGUMENT: an unknown scope, cause or kind of note, or half a link. `message.job` is the caller's to read.
absl::StatusOr<diagnosis::Report> ReadReport(const v1::DiagnosisReport& message);

void FillTrace(const diagnosis::RankTrace& trace, v1::RankTrace* message);
// INVALID_ARGUMENT: an unknown veto.
absl::StatusOr<diagnosis::RankTrace> ReadTrace(const v1::RankTrace& message);

void FillVerdict(const diagnosis::Verdict& verdict, v1::Verdict* message);
absl::StatusOr<diagnosis::Verdict> ReadVerdict(const v1::Verdict& message);

}  // namespace taskd::proto
