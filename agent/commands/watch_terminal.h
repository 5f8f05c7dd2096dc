// The terminal of a command that draws again and again, until somebody presses q.
#pragma once

#include <chrono>
#include <string>

#include "agent/commands/watch_screen.h"

namespace taskd::commands {

// One at a time in a process. Keys come one by one and are not shown; a signal that ends the process leaves the terminal
// as it was, as the destructor does.
class WatchTerminal {
 public:
  // stdout is a terminal on which the cursor can be set.
  static bool IsThere();
  static ScreenSize Size();

  WatchTerminal();
  WatchTerminal(const WatchTerminal&) = delete;
  WatchTerminal& operator=(const WatchTerminal&) = delete;
  ~WatchTerminal();

  // There are greys, and NO_COLOR is not set (https://no-color.org).
  bool greys() const { return greys_; }
  // Over what was there. False: the terminal has gone.
  bool Show(const std::string& screen) const;
  // False: q was pressed.
  bool Wait(std::chrono::milliseconds time) const;

 private:
  void TakeKeys() const;

  const bool greys_;
  bool keys_;  // stdin is a terminal
};

}  // namespace taskd::commands
