// What commands share that read for long.
#pragma once

#include <chrono>
#include <cstdint>

namespace taskd::commands {

// With which a folder of mark files is read: more would wait for the disk or for one engine.
int ReadingThreads();

// How far it is: one line of stderr that is written over; nothing where that is no terminal.
class Progress {
 public:
  Progress();
  void Show(const char* what, uint64_t bytes_done, uint64_t bytes);
  void Clear() const;

 private:
  const bool terminal_;
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace taskd::commands
