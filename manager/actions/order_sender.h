// Sends the job's orders to one receiver, in a thread of its own, so that a receiver delays nobody else.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "manager/actions/action_core.h"
#include "manager/actions/order_receiver.h"

namespace taskd::manager {

class OrderSender {
 public:
  // Looks for an order once a `period`; while one is not taken, or cannot be kept, with a back-off up to a minute.
  OrderSender(std::string to, std::unique_ptr<OrderReceiver> receiver, std::shared_ptr<ActionCore> actions,
              std::chrono::milliseconds period = std::chrono::milliseconds(1000));
  // The order that is under way counts as not answered. A receiver that hangs with its storage is left behind after a while;
  // `actions` is not called any more.
  ~OrderSender();
  OrderSender(const OrderSender&) = delete;
  OrderSender& operator=(const OrderSender&) = delete;

 private:
  struct Share;
  const std::shared_ptr<Share> share_;
  std::thread thread_;
};

}  // namespace taskd::manager
