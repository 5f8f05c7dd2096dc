#include "readers/number_text.h"

#include "absl/strings/numbers.h"

namespace taskd::readers {

std::optional<Stamp> ReadStamp(std::string_view text) {
  uint64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc() && (rest == end || *rest == '.')) {
    if (static_cast<double>(whole) >= kNanosecondsFrom) return Stamp{whole, true};
    uint64_t fraction = 0, scale = 100;
    const char* digit = rest == end ? end : rest + 1;
    for (; digit < end && *digit >= '0' && *digit <= '9'; ++digit, scale /= 10) {
      fraction += static_cast<uint64_t>(*digit - '0') * scale;
    }
    if (digit == end) return Stamp{whole * 1000 + fraction, false};
  }
  double value = 0;
  if (!absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value) || !(value >= 0) || value >= 1.8e19)
    return std::nullopt;
  if (value >= kNanosecondsFrom) return Stamp{static_cast<uint64_t>(value), true};
  return value < 1e16 ? std::optional(Stamp{static_cast<uint64_t>(value * 1000), false}) : std::nullopt;
}

}  // namespace taskd::readers
