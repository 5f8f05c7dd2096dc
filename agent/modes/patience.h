// One wait for other nodes: said now and then, and over after a while.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/event_loop.h"

namespace taskd::modes {

// On the loop's thread.
class Patience {
 public:
  // `over`: the time is up; the line says who is missing and how long was waited.
  Patience(EventLoop* loop, double limit_s, std::function<void(const std::string& line)> over);
  ~Patience() { End(); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  // `missing`: who is waited for, for people. Ends the wait before.
  void Begin(std::function<std::string()> missing);
  void End();
  bool waits() const { return missing_ != nullptr; }

 private:
  void Say();
  void Over();

  EventLoop* const loop_;
  const double limit_s_;
  const std::function<void(const std::string& line)> over_;
  std::function<std::string()> missing_;
  std::optional<EventLoop::TimerId> over_timer_, say_timer_;
};

}  // namespace taskd::modes
