// Numbers as JSON and CSV write them, read without a detour over doubles where that would lose digits.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace taskd::readers {

// Times are microseconds. A count of so many of them since 1970 would be after the year 5000: it is nanoseconds.
inline constexpr double kNanosecondsFrom = 1e17;

// "1712861234567890.123" microseconds, exactly.
struct Stamp {
  uint64_t ns = 0;
  bool is_ns = false;  // it was nanoseconds already
};

// Nothing: it is no number from 0 on, or too large.
std::optional<Stamp> ReadStamp(std::string_view text);

// All of `text`, or `otherwise`.
template <typename Number>
Number ReadNumber(std::string_view text, Number otherwise) {
  Number number{};
  const char* end = text.data() + text.size();
  return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()} ? number : otherwise;
}

}  // namespace taskd::readers
