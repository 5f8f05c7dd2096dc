#include "agent/commands/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

namespace taskd::commands {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{200};
constexpr unsigned kMaxThreads = 4;

}  // namespace

int ReadingThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads)); }

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::Show(const char* what, uint64_t bytes_done, uint64_t bytes) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < kRedrawInterval) return;
  shown_ = now;
  fprintf(stderr, "\r\033[K%s: %3.0f %% of %.0f MB", what,
          100 * static_cast<double>(bytes_done) / static_cast<double>(std::max<uint64_t>(bytes, 1)),
          static_cast<double>(bytes) / 1e6);
}

void Progress::Clear() const {
  if (terminal_) fprintf(stderr, "\r\033[K");
}

}  // namespace taskd::commands
