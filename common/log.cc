#include "common/log.h"

#include <cstdlib>

#include "spdlog/sinks/stdout_sinks.h"

namespace taskd {

void InitLog(const std::string& role) {
  auto logger = spdlog::stderr_logger_mt(role);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %v");
  if (const char* level = std::getenv("TASKD_LOG_LEVEL")) logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace taskd
