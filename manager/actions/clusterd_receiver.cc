#include "manager/actions/clusterd_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/realtime.h"

namespace taskd::manager {
namespace {

constexpr int kMostDevices = 32;
constexpr int64_t kNsInMs = 1'000'000;

}  // namespace

PublicFaultRequest OrderRequest(const policy::Action& action, const diagnosis::Report& report, const JobShape& job,
                                int64_t now_ms) {
  diagnosis::Verdict verdict;
  verdict.scope = diagnosis::Scope::kNode;
  verdict.ids = {action.node};
  verdict.since_ns = static_cast<uint64_t>(std::max<int64_t>(action.time_ns, 0));
  verdict.text = action.verdict.empty() ? action.reason : action.verdict;
  for (const diagnosis::Verdict& known : report.verdicts) {
    if (action.verdict_id != 0 && known.id == action.verdict_id) verdict = known;
  }
  FaultPlace place{action.node_name, {}};
  const int devices = std::clamp(action.ranks[1] - action.ranks[0] + 1, 1, kMostDevices);
  for (int device = 0; device < devices; ++device) place.devices.push_back(device);
  PublicFaultRequest request = FaultRequest(verdict, {place}, job, now_ms);
  request.set_id(absl::StrCat("taskd-order-", action.id));
  request.mutable_faults(0)->set_faultid(request.id());
  return request;
}

ClusterdReceiver::ClusterdReceiver(std::string address, JobShape job,
                                   std::function<std::shared_ptr<const diagnosis::Report>()> report)
    : address_(std::move(address)), job_(std::move(job)), report_(std::move(report)) {}

OrderAnswer ClusterdReceiver::Send(const policy::Action& action) {
  if (!IsClusterdName(action.node_name)) {
    return {policy::Outcome::kFailed,
            absl::StrCat("ClusterD takes no node name such as '", Printable(action.node_name), "'")};
  }
  return Send(OrderRequest(action, *report_(), job_, RealtimeNs() / kNsInMs));
}

OrderAnswer ClusterdReceiver::Withdraw(const policy::Action& action) {
  const int64_t now_ms = RealtimeNs() / kNsInMs;
  return Send(RecoveryRequest(OrderRequest(action, *report_(), job_, now_ms), now_ms));
}

OrderAnswer ClusterdReceiver::Send(const PublicFaultRequest& request) {
  const absl::Status sent = SendPublicFault(address_, request, calls_);
  if (sent.ok()) return {policy::Outcome::kTaken, absl::StrCat("fault ", request.id())};
  return {absl::IsInvalidArgument(sent) ? policy::Outcome::kFailed : policy::Outcome::kSent,
          absl::StrCat("ClusterD at ", address_, ": ", std::string(sent.message()))};
}

}  // namespace taskd::manager
