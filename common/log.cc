#include "common/log.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/flag_names.h"
#include "common/line_writer.h"
#include "common/log_level.h"
#include "common/printable.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/sink.h"

namespace taskd {
namespace {

constexpr std::chrono::seconds kLastLines{1};

// %*: the message, in whose text peers, hosts and ranks may have had a say.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = Printable(NamedFlags({message.payload.data(), message.payload.size()}), kShownLineBytes);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<OneLine>(); }
};

// All that is static here lasts for ever: threads may log while the process ends.

// Held by who forks, too: no other thread is then at work here, nor in the lock that localtime() has.
constinit std::mutex held_at_fork;

std::string Formatted(const spdlog::details::log_msg& message) {
  const std::lock_guard lock(held_at_fork);
  static spdlog::formatter& formatter = *LogFormatter().release();
  spdlog::memory_buf_t text;
  formatter.format(message, text);
  return {text.data(), text.size()};
}

std::atomic<const std::string*> log_role = nullptr;
std::atomic<bool> is_fork_child = false;

std::string LossLine(uint64_t lines, std::string_view why) {
  const std::string text =
      fmt::format("{} not written: {}", lines == 1 ? "1 line was" : fmt::format("{} lines were", lines), why);
  const std::string* role = log_role;
  return Formatted({role == nullptr ? "taskd" : *role, spdlog::level::warn, text});
}

// stdout or stderr of this process.
class Standard {
 public:
  explicit constexpr Standard(int fd) : fd_(fd) {}

  LineWriter& writer();
  void Flush(std::chrono::steady_clock::time_point deadline) {
    if (LineWriter* writer = writer_.load()) writer->Flush(deadline);
  }
  void Forget() { writer_ = nullptr; }

 private:
  const int fd_;
  std::atomic<LineWriter*> writer_ = nullptr;
};

constinit Standard standard_output(STDOUT_FILENO);
constinit Standard standard_error(STDERR_FILENO);
// In the child of a fork the parent's threads are not there, and the lines that wait are the parent's.
[[maybe_unused]] const bool prepared = [] {
  ::pthread_atfork([] { held_at_fork.lock(); }, [] { held_at_fork.unlock(); },
                   [] {
                     held_at_fork.unlock();
                     is_fork_child = true;
                     standard_output.Forget();
                     standard_error.Forget();
                   });
  return std::atexit(FlushLines) == 0;
}();

LineWriter& Standard::writer() {
  if (LineWriter* writer = writer_.load()) return *writer;
  const std::lock_guard lock(held_at_fork);
  if (writer_ == nullptr) {
    // A child executes something or ends, often by _exit(): no thread would come to its lines.
    writer_ = new LineWriter(UniqueFd(fd_), {.loss = LossLine, .may_start_thread = !is_fork_child});
  }
  return *writer_;
}

class StderrSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override { WriteToStderr(Formatted(message)); }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

}  // namespace

std::unique_ptr<spdlog::formatter> LogFormatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<OneLine>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %*");
  return formatter;
}

std::optional<spdlog::level::level_enum> ParseLogLevel(std::string_view name) {
  std::string word(name);
  absl::AsciiStrToLower(&word);
  if (word == "fatal") return spdlog::level::critical;
  const spdlog::level::level_enum level = spdlog::level::from_str(word);
  // spdlog takes every word that it does not know for "off".
  if (level == spdlog::level::off && word != "off") return std::nullopt;
  return level;
}

void InitLog(const std::string& role) {
  static std::deque<std::string>& roles = *new std::deque<std::string>;  // of tests, which do it again
  log_role = &roles.emplace_back(role);
  auto logger = std::make_shared<spdlog::logger>(role, std::make_shared<StderrSink>());
  const char* wanted = std::getenv("TASKD_LOG_LEVEL");
  const std::string_view name = wanted == nullptr || *wanted == '\0' ? "info" : wanted;
  const std::optional<spdlog::level::level_enum> level = ParseLogLevel(name);
  logger->set_level(level.value_or(spdlog::level::info));
  spdlog::set_default_logger(std::move(logger));
  if (!level) spdlog::warn("TASKD_LOG_LEVEL is '{}'; it must be trace, debug, info, warning, error or off", name);
}

void WriteToStderr(std::string lines) { standard_error.writer().Write(std::move(lines)); }
void WriteToStdout(std::string lines) { standard_output.writer().Write(std::move(lines)); }

void FlushLines() {
  const auto deadline = std::chrono::steady_clock::now() + kLastLines;
  standard_output.Flush(deadline);
  standard_error.Flush(deadline);
}

}  // namespace taskd
