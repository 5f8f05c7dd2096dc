// When a daemon has to end: SIGTERM, SIGINT, or the end of stdin where a parent holds the other end.
#pragma once

#include <string>

namespace taskd {

// Create it before the first thread: SIGTERM and SIGINT are blocked from then on, in threads made later too, and
// delivered to Wait() alone. SIGPIPE is ignored.
class StopSignal {
 public:
  explicit StopSignal(bool on_stdin_eof);

  // Blocks until it is time to stop; returns why ("SIGTERM", "SIGINT", "stdin has closed").
  std::string Wait();

 private:
  const bool on_stdin_eof_;
};

}  // namespace taskd
