#include "common/log.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "common/log_level.h"
#include "common/printable.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace taskd {
namespace {

// %*: the message, in whose text peers, hosts and ranks may have had a say.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = Printable({message.payload.data(), message.payload.size()}, kShownLineBytes);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<OneLine>(); }
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
  auto logger = spdlog::stderr_logger_mt(role);
  logger->set_formatter(LogFormatter());
  const char* wanted = std::getenv("TASKD_LOG_LEVEL");
  const std::string_view name = wanted == nullptr || *wanted == '\0' ? "info" : wanted;
  const std::optional<spdlog::level::level_enum> level = ParseLogLevel(name);
  logger->set_level(level.value_or(spdlog::level::info));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  if (!level) spdlog::warn("TASKD_LOG_LEVEL is '{}'; it must be trace, debug, info, warning, error or off", name);
}

}  // namespace taskd
