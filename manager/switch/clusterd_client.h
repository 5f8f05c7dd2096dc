// The manager as a subscriber of ClusterD's switch (TaskD contract §1.1, SubscribeDataTraceSwitch with role "taskd").
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/switch.h"

namespace taskd::manager {

class ClusterdClient {
 public:
  // Subscribes at `address` (HOST:PORT) for ever, with a back-off of 0.5 to 30 s between attempts. `on_switch` is
  // called from the client's thread for every valid push; `may_be_replay` is true for what may only repeat the state
  // from before a reconnect. Messages without a switch, with another code than 200 or with bad values are ignored and
  // counted in the log, once a minute. A server that sends more than 256 messages at once and 10 a second after that
  // is left, and subscribed to again.
  using OnSwitch = std::function<void(const SwitchChange& change, bool may_be_replay)>;
  ClusterdClient(std::string address, std::string job_id, OnSwitch on_switch);
  ~ClusterdClient();  // cancels what is under way and joins the thread
  ClusterdClient(const ClusterdClient&) = delete;
  ClusterdClient& operator=(const ClusterdClient&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::manager
