// One who takes orders about nodes (docs/acting.md).
#pragma once

#include <string>

#include "policy/action.h"

namespace taskd::manager {

struct OrderAnswer {
  policy::Outcome outcome = policy::Outcome::kFailed;  // kSent: to be tried again later
  std::string text;                                    // one line
};

// Called by one thread, but for Stop(). Calls may take as long as the receiver does.
class OrderReceiver {
 public:
  OrderReceiver() = default;
  virtual ~OrderReceiver() = default;
  OrderReceiver(const OrderReceiver&) = delete;
  OrderReceiver& operator=(const OrderReceiver&) = delete;

  // The same action may come again, after a kill of the manager: it has the same id.
  virtual OrderAnswer Send(const policy::Action& action) = 0;
  // Takes an order back that was sent, or may have been.
  virtual OrderAnswer Withdraw(const policy::Action& action) = 0;
  // Ends the call that is under way, where that can be done. From any thread.
  virtual void Stop() {}
};

}  // namespace taskd::manager
