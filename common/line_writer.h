// Lines for a reader that may have stopped to read: a terminal under Ctrl-S, a pipe that nobody empties, storage that
// hangs. A thread waits for the reader, never the caller. (Not O_NONBLOCK: that belongs to the open file, which
// others share.)
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/unique_fd.h"

namespace taskd {

// Any thread may use it; none waits but in Flush().
class LineWriter {
 public:
  struct Options {
    size_t max_bytes = 1 << 20;
    size_t max_texts = 1 << 14;
    // The line, with its end, that stands where `lines` lines were not written. None: nothing is said.
    std::function<std::string(uint64_t lines, std::string_view why)> loss = nullptr;
    // Of each text, on the writer's thread.
    std::function<void(bool written)> written = nullptr;
    // False: none is started, and what cannot be written at once waits for the next call.
    bool may_start_thread = true;
  };

  // On the writer's thread: writes whole lines. Returns why that failed, or "".
  using Target = std::function<std::string(std::string_view lines)>;

  LineWriter(UniqueFd fd, Options options);
  LineWriter(Target target, Options options);
  ~LineWriter();  // drops what waits
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Whole lines: one write(2), in the order of the calls. Where more would wait than the limits allow the older half is
  // dropped and counted, so that the newest lines, which say how it ended, are there when somebody reads. What cannot
  // be written (a full disk) is counted, too.
  void Write(std::string lines);

  // Waits until all is written, or the deadline.
  void Flush(std::chrono::steady_clock::time_point deadline);

 private:
  class Queue;
  const std::shared_ptr<Queue> queue_;  // its thread may outlive the writer
};

}  // namespace taskd
