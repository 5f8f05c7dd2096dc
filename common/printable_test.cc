#include "common/printable.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

TEST(PrintableTest, LeavesTextAsItIs) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("node-0.svc: a \\ \"b\" ~"), "node-0.svc: a \\ \"b\" ~");
  EXPECT_EQ(Printable("节点 é 🚀"), "节点 é 🚀");
}

TEST(PrintableTest, ShowsWhatATerminalObeys) {
  EXPECT_EQ(Printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(Printable(std::string_view("\0\x1b[2J\a\x7f", 7)), "\\x00\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(Printable("\u009b31m\u0080\u0085"), "\\u009b31m\\u0080\\u0085");
  EXPECT_EQ(Printable("\u202e\u202a\u2066\u2069\u200e\u061c\u2028\u2029\ufeff"),
            "\\u202e\\u202a\\u2066\\u2069\\u200e\\u061c\\u2028\\u2029\\ufeff");
  EXPECT_EQ(Printable("\u00a0\u2027\u202f\u2065\u206a"), "\u00a0\u2027\u202f\u2065\u206a") << "their neighbours";
}

TEST(PrintableTest, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(Printable("\x9b"), "\\x9b");                             // C1 as one byte
  EXPECT_EQ(Printable("\xc0\x8a"), "\\xc0\\x8a");                    // overlong line feed
  EXPECT_EQ(Printable("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");           // overlong U+001B
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("ab\xe8\x8a"), "ab\\xe8\\x8a");  // cut inside a character
}

TEST(PrintableTest, CutsBetweenCharacters) {
  EXPECT_EQ(Printable(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(Printable(std::string(201, 'x')), std::string(200, 'x') + "…");
  EXPECT_EQ(Printable("ab节", 5), "ab节");
  EXPECT_EQ(Printable("ab节", 4), "ab…");
  EXPECT_EQ(Printable("a\x1b"
                      "b",
                      5),
            "a\\x1b…");
  EXPECT_EQ(Printable("a\x1b"
                      "b",
                      4),
            "a…");
  EXPECT_EQ(Printable(std::string(4 << 20, '\n')).size(), 200 + std::string("…").size());
}

TEST(PrintableTest, JsonKeepsItsValue) {
  const std::string json = "{\n \"host\": \"a\u009b\x7f\u202e节\\u001b\"\n}\n";
  EXPECT_EQ(PrintableJson(json), "{\n \"host\": \"a\\u009b\\u007f\\u202e节\\u001b\"\n}\n");
  EXPECT_EQ(nlohmann::json::parse(PrintableJson(json)), nlohmann::json::parse(json));
  EXPECT_EQ(PrintableJson("[1]"), "[1]");
}

}  // namespace
}  // namespace taskd
