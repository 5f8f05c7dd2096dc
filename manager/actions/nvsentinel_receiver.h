// The receiver `nvsentinel`: a health event from the node's own proxy (docs/acting.md).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "manager/actions/order_receiver.h"
#include "manager/switch/core.h"
#include "nvsentinel.pb.h"

namespace taskd::manager {

// The event of an order, or of its end (`is_healthy`). Agent, check and node are the same in both.
datamodels::HealthEvents OrderEvents(const policy::Action& action, bool is_healthy, bool executes, int64_t now_ns);

class NvsentinelReceiver final : public OrderReceiver {
 public:
  // `socket`: of NVSentinel on each node. `executes`: it may act; else it only stores the event.
  NvsentinelReceiver(std::shared_ptr<ManagerCore> core, std::string socket, bool executes);

  OrderAnswer Send(const policy::Action& action) override { return Tell(action, false); }
  OrderAnswer Withdraw(const policy::Action& action) override { return Tell(action, true); }
  void Stop() override { stopped_ = true; }

 private:
  OrderAnswer Tell(const policy::Action& action, bool is_healthy);

  const std::shared_ptr<ManagerCore> core_;
  const std::string socket_;
  const bool executes_;
  std::atomic<bool> stopped_{false};
};

}  // namespace taskd::manager
