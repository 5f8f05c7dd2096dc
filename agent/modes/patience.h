// One wait for other nodes: logged from time to time, and given up after a time limit.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/event_loop.h"

namespace taskd::modes {

// On the loop's thread.
class Patience {
 public:
  // `over`: called when the time is up, with a line that names the missing nodes and the time waited.
  Patience(EventLoop* loop, double limit_s, std::function<void(const std::string& line)> over);
  ~Patience() { End(); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  // `missing`: returns the nodes that are waited for, as text for people. Ends any earlier wait.
  void Begin(std::function<std::string()> missing);
  void End();
  bool waits() const { return missing_ != nullptr; }

 private:
  void PrintMissing();
  void Over();

  EventLoop* const loop_;
  const double limit_s_;
  const std::function<void(const std::string& line)> over_;
  std::function<std::string()> missing_;
  std::optional<EventLoop::TimerId> over_timer_, print_timer_;
};

}  // namespace taskd::modes
