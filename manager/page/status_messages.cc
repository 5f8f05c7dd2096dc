#include "manager/page/status_messages.h"

#include "diagnosis/render.h"
#include "manager/verdicts/diagnosis_core.h"
#include "proto/node_messages.h"

namespace taskd::manager {
namespace {

constexpr int kMaxOpenVerdicts = 20;

}  // namespace

void FillNode(const JobSnapshot::Node& node, v1::NodeStatus* message) {
  message->set_node(node.node);
  message->set_host(node.host);
  message->set_pod(node.pod);
  message->set_node_name(node.node_name);
  message->set_node_name_refusal(node.name_refusal);
  message->set_connected(node.connected);
  message->set_silent_s(static_cast<uint32_t>(node.silent.count()));
  for (const RankReport& rank : node.ranks) proto::FillRankReport(rank, message->add_ranks());
  if (!node.mark_files) return;
  message->mutable_mark_files()->set_dir(node.mark_files->dir);
  message->mutable_mark_files()->set_task(node.mark_files->task);
  message->mutable_mark_files()->set_error(node.mark_files->error);
}

void FillDiagnosis(const diagnosis::Report& report, v1::DiagnosisStatus* message) {
  message->set_state(diagnosis::Name(report.state));
  message->set_headline(diagnosis::WriteHeadline(report));
  message->set_coverage(CoverageOf(report));
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    if (verdict.open && message->open_verdicts_size() < kMaxOpenVerdicts) message->add_open_verdicts(verdict.text);
  }
}

}  // namespace taskd::manager
