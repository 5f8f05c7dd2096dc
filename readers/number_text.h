// Reads numbers from JSON and CSV exactly; doubles would lose digits.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace taskd::readers {

// Times are microseconds. A larger value would be after the year 5000, so it is nanoseconds.
inline constexpr double kNanosecondsFrom = 1e17;

// An exact time from text such as "1712861234567890.123" (microseconds).
struct Stamp {
  uint64_t ns = 0;
  bool is_ns = false;  // the text was nanoseconds
};

// nullopt: the text is not a number from 0 on, or it is too large.
std::optional<Stamp> ReadStamp(std::string_view text);

// Parses all of `text`; returns `otherwise` if that fails.
template <typename Number>
Number ReadNumber(std::string_view text, Number otherwise) {
  Number number{};
  const char* end = text.data() + text.size();
  return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()} ? number : otherwise;
}

}  // namespace taskd::readers
