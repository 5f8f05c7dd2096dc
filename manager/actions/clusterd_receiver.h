// The receiver `clusterd`: the public fault that --report-fault sends (manager/verdicts/fault_reporter.h), of the action's node.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "manager/actions/order_receiver.h"
#include "manager/rpc/call_again.h"
#include "manager/switch/core.h"
#include "manager/verdicts/fault_reporter.h"

namespace taskd::manager {

// The fault of an order: the verdict's, if the report has it yet, and always of the action's node and all its devices.
// Its id is the action's, so that the same order sent twice is one fault. The name is one that ClusterD takes.
PublicFaultRequest OrderRequest(const policy::Action& action, const diagnosis::Report& report, const JobShape& job,
                                int64_t now_ms);

class ClusterdReceiver final : public OrderReceiver {
 public:
  ClusterdReceiver(std::string address, JobShape job, std::function<std::shared_ptr<const diagnosis::Report>()> report);

  OrderAnswer Send(const policy::Action& action) override;
  OrderAnswer Withdraw(const policy::Action& action) override;
  void Stop() override { calls_.Stop(); }

 private:
  OrderAnswer Send(const PublicFaultRequest& request);

  const std::string address_;
  const JobShape job_;
  const std::function<std::shared_ptr<const diagnosis::Report>()> report_;
  StoppableCalls calls_;
};

}  // namespace taskd::manager
