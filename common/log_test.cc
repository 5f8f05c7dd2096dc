#include "common/log.h"

#include <sstream>

#include "common/log_level.h"
#include "common/printable.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"

namespace taskd {
namespace {

using ::testing::MatchesRegex;

std::string Logged(const std::string& text) {
  std::ostringstream out;
  spdlog::logger logger("proxy", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  logger.set_formatter(LogFormatter());
  logger.warn("host {}", text);
  return out.str();
}

TEST(LogTest, HasTimeLevelAndRole) {
  EXPECT_THAT(Logged("node-0"), MatchesRegex("20..-..-..T..:..:...... warning proxy: host node-0\n"));
}

TEST(LogTest, AMessageIsOneLineAndHarmless) {
  EXPECT_THAT(Logged("a\n2026-01-01T00:00:00.000 info manager: false\x1b[2J\u009b1m\u202e"),
              MatchesRegex("[^\n]*host a\\\\n2026[^\n]*false\\\\x1b\\[2J\\\\u009b1m\\\\u202e\n"));
}

TEST(LogTest, ALongMessageIsCut) { EXPECT_LT(Logged(std::string(4 << 20, 'x')).size(), kShownLineBytes + 100); }

TEST(LogTest, LevelsByTheirNames) {
  for (const char* name : {"warning", "WARNING", "warn", "Warn"}) {
    EXPECT_EQ(ParseLogLevel(name), spdlog::level::warn) << name;
  }
  EXPECT_EQ(ParseLogLevel("ERROR"), spdlog::level::err);
  EXPECT_EQ(ParseLogLevel("FATAL"), spdlog::level::critical);
  EXPECT_EQ(ParseLogLevel("off"), spdlog::level::off);
  for (const char* name : {"", "INFORMATION", "20", "-1"}) EXPECT_EQ(ParseLogLevel(name), std::nullopt) << name;
}

}  // namespace
}  // namespace taskd
