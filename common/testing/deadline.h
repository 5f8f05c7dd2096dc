// How long a C++ test may wait on a machine that it shares with builds and other tests.
//
// Every wait of a test goes through this file, by the rule of tests/lib/deadlines.py: a bound extends while the kernel
// reports that processes wait for a CPU or a disk (/proc/pressure, PSI), so it is about the program under test and not
// about the load of the machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace taskd::testing {

// For events that have no promise of their own.
inline constexpr std::chrono::seconds kPatience{30};
// The most that a starved machine adds to a bound.
inline constexpr std::chrono::seconds kMostStarved{90};
// For calls that keep time themselves and cannot look at the pressure: a gRPC call, recv(), poll(). It ends what hangs and
// decides nothing.
inline constexpr std::chrono::seconds kHangLimit = kPatience + kMostStarved;
inline constexpr int kHangLimitMs = std::chrono::milliseconds(kHangLimit).count();

// The total of the line "some" of a /proc/pressure file; nullopt if the text has none.
inline std::optional<std::chrono::microseconds> PressureTotal(std::string_view text) {
  constexpr std::string_view kSome = "some ";
  constexpr std::string_view kTotal = " total=";
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(kSome)) continue;
    const size_t total = line.find(kTotal);
    if (total == std::string_view::npos) return std::nullopt;
    int64_t us = 0;
    size_t digits = 0;
    for (const char c : line.substr(total + kTotal.size())) {
      if (c < '0' || c > '9' || us > std::numeric_limits<int64_t>::max() / 20) break;
      us = 10 * us + (c - '0');
      ++digits;
    }
    if (digits == 0) return std::nullopt;
    return std::chrono::microseconds(us);
  }
  return std::nullopt;
}

// Time, since boot, in which processes of this machine have waited for a CPU or a disk; nullopt if the kernel does not
// count it.
inline std::optional<std::chrono::microseconds> Starved() {
  std::chrono::microseconds starved{0};
  for (const char* path : {"/proc/pressure/cpu", "/proc/pressure/io"}) {
    std::ifstream file(path);
    const auto total = PressureTotal(std::string(std::istreambuf_iterator<char>(file), {}));
    if (!total) return std::nullopt;
    starved += *total;
  }
  return starved;
}

// How much a bound extends; `before` and `now` are two values of Starved().
inline std::chrono::microseconds Extension(std::optional<std::chrono::microseconds> before,
                                           std::optional<std::chrono::microseconds> now) {
  if (!before || !now) return kMostStarved;
  return std::min<std::chrono::microseconds>(*now - *before, kMostStarved);
}

// `patience` from now, extended by the time in which the machine is starved, by kMostStarved at most. A kernel without
// PSI gives the whole extension.
class Deadline {
 public:
  explicit Deadline(std::chrono::steady_clock::duration patience = kPatience) : patience_(patience) {}

  bool IsOver() const {
    const auto late = std::chrono::steady_clock::now() - begun_ - patience_;
    return late > late.zero() && late > Extension(starved_, Starved());
  }

 private:
  const std::chrono::steady_clock::duration patience_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const std::optional<std::chrono::microseconds> starved_ = Starved();
};

// Polls until `condition()` is true. Returns false if that takes longer than kPatience.
template <typename Condition>
bool WaitUntil(Condition condition) {
  const Deadline deadline;
  while (true) {
    const bool is_over = deadline.IsOver();  // before the last look: it may have taken long to get to it
    if (condition()) return true;
    if (is_over) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Waits until `condition()`, which `lock` guards, is true; `changed` announces that. False: not within kPatience.
template <typename Condition>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition condition) {
  const Deadline deadline;
  while (true) {
    const bool is_over = deadline.IsOver();
    if (changed.wait_for(lock, std::chrono::milliseconds(200), condition)) return true;
    if (is_over) return false;
  }
}

}  // namespace taskd::testing
