// The receiver `command:PATH`: a program of the site's that takes an order (docs/acting.md).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "manager/actions/order_receiver.h"

namespace taskd::manager {

// Runs the program once for each order, with the action's JSON on stdin, and TASKD_ACTION_ID and TASKD_NODE_NAME besides this
// process's environment. Exit code 0: taken, 75: to be tried again, else failed. It is killed together with its process group
// after kLimit or kMostOutput; what it leaves behind in the group is killed when it ends. It cannot gain
// privileges (PR_SET_NO_NEW_PRIVS), and ends with this process.
class CommandReceiver final : public OrderReceiver {
 public:
  static constexpr std::chrono::seconds kLimit{60};
  static constexpr size_t kMostOutput = size_t{1} << 20;

  using Now = std::function<std::chrono::steady_clock::time_point()>;
  explicit CommandReceiver(std::string path, Now now = std::chrono::steady_clock::now);

  OrderAnswer Send(const policy::Action& action) override;
  OrderAnswer Withdraw(const policy::Action& action) override;
  void Stop() override { stopped_ = true; }

 private:
  const std::string path_;
  const Now now_;
  std::atomic<bool> stopped_{false};
};

}  // namespace taskd::manager
