// Logging: spdlog to stderr, one line an event. Results of commands go to stdout, never through here.
// Include this instead of spdlog, so that messages of absl::Status can be logged as they are: Debian builds Abseil with
// a string_view of its own, which fmt does not know. Where absl::StrCat would meet a std::string_view, use fmt::format.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "spdlog/spdlog.h"

#if !defined(ABSL_USES_STD_STRING_VIEW)
template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(absl::string_view text, Context& context) const {
    return fmt::formatter<std::string_view>::format({text.data(), text.size()}, context);
  }
};
#endif

namespace taskd {

// Sets spdlog's default logger up: "2026-01-02T03:04:05.678 warning proxy: text". Level from TASKD_LOG_LEVEL (trace,
// debug, info, warning, error, off; default info). Call once, in main.
// A message is one line whatever is in it: it goes through Printable (common/printable.h) and is cut at
// kShownLineBytes.
void InitLog(const std::string& role);

// The lines' format, without their target.
std::unique_ptr<spdlog::formatter> LogFormatter();

}  // namespace taskd
