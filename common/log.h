// Logging: spdlog to stderr, one line an event. Results of commands go to stdout, never through here.
// Include this instead of spdlog, so that messages of absl::Status can be logged as they are: Debian builds Abseil with
// a string_view of its own, which fmt does not know. Where absl::StrCat would meet a std::string_view, use fmt::format.
//
// Any thread may log, also one that others wait for, and the child of a fork; a signal handler may not. Nobody waits for
// a reader (common/line_writer.h): 1 MiB of lines does. What was dropped is one line, as soon as somebody reads:
// "… warning proxy: 317 lines were not written: nobody reads". At exit() the last lines have a second.
//
// What levels mean: error: something will not work, or data is lost. warning: TaskD goes on, but with less than was asked for,
// or somebody should look. info: what happens once in a job or a round. debug: what happens for each connection or call.
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
// debug, info, warning, error, critical, off; default info). Call once, in main.
// A message is one line whatever is in it: it goes through Printable (common/printable.h) and is cut at
// kShownLineBytes.
void InitLog(const std::string& role);

// Whole lines as they are, for people: in order with the log's, on its terms (any thread, no waiting). Written also where
// TASKD_LOG_LEVEL is off, and before InitLog().
void WriteToStderr(std::string lines);
// The same for what a daemon or a launcher has to say on stdout.
void WriteToStdout(std::string lines);

// What both and the log have waiting is written, as far as it is taken within a second. exit() does this; for _exit().
void FlushLines();

// The lines' format, without their target.
std::unique_ptr<spdlog::formatter> LogFormatter();

}  // namespace taskd
