#include "common/log.h"

#include <cstdlib>

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

void InitLog(const std::string& role) {
  auto logger = spdlog::stderr_logger_mt(role);
  logger->set_formatter(LogFormatter());
  if (const char* level = std::getenv("TASKD_LOG_LEVEL")) logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace taskd
