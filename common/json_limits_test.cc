#include "common/json_limits.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::HasSubstr;

std::string Nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonLimits, ParsesWhatIsWithinThem) {
  auto json = ParseJson(R"({"a": [1, "]]]]\"[[[["], "b": {"c": null}})", {.depth = 2});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["a"][1], "]]]]\"[[[[");
  auto ordered = ParseJson<nlohmann::ordered_json>(R"({"z": 1, "a": 2})", {});
  ASSERT_TRUE(ordered.ok());
  EXPECT_EQ(ordered->dump(), R"({"z":1,"a":2})");
}

TEST(JsonLimits, SaysWhichIsBroken) {
  EXPECT_TRUE(ParseJson(Nested(16), {}).ok());
  EXPECT_THAT(std::string(ParseJson(Nested(17), {}).status().message()), HasSubstr("16 levels"));
  EXPECT_THAT(std::string(ParseJson("[1,2,3]", {.values = 3}).status().message()), HasSubstr("3 values"));
  EXPECT_TRUE(ParseJson("[1,2,3]", {.values = 4}).ok());
  EXPECT_THAT(std::string(ParseJson("[1,2,3]", {.bytes = 6}).status().message()), HasSubstr("7 bytes"));
}

TEST(JsonLimits, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "]", "[1,]", "{\"a\"}", "\"open", "\"\\", "nul", "[1] [2]", "]]]][[[[", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJson(text, {}).status())) << text;
  }
}

// Neither the check nor a refusal recurses: 32 MiB of brackets on any stack.
TEST(JsonLimits, DepthCostsNothing) {
  const std::string brackets(size_t{32} << 20, '[');
  EXPECT_FALSE(ParseJson(brackets, {.bytes = size_t{64} << 20}).ok());
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(objects, {.bytes = size_t{64} << 20}).ok());
}

}  // namespace
}  // namespace taskd
