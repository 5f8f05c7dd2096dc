#include "agent/ranktable/json_text.h"

#include <gtest/gtest.h>

namespace taskd::ranktable {
namespace {

std::string ErrorOf(std::string_view text) { return std::string(CheckJsonText(text).message()); }

TEST(CheckJsonText, AcceptsEveryKindOfValue) {
  for (const char* text : {"{}", "[]", " [ ] ", "\"\"", "0", "-0", "1.5e-3", "1E+2", "true", "false", "null",
                           R"({"a":[1,"2",{"b":null}],"c":{"a":1}})", R"("\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00")",
                           "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\r\n\t{ \"a\" : 1 , \"b\" : 2 }\n"}) {
    EXPECT_TRUE(CheckJsonText(text).ok()) << text << ErrorOf(text);
  }
}

TEST(CheckJsonText, RefusesWhatIsNoJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "[1",
                           "[1,",
                           "[1,]",
                           "[,]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{'a':1}",
                           "\"a",
                           "\"\\",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\\u12",
                           "\"a\nb\"",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "-",
                           "nul",
                           "truee",
                           "{} {}",
                           "[1 2]",
                           "NaN",
                           "// c\n{}",
                           "\xef\xbb\xbf{}"}) {
    EXPECT_FALSE(CheckJsonText(text).ok()) << text;
  }
}

TEST(CheckJsonText, RefusesWhatIsNotUtf8) {
  for (const char* bytes : {"\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\x80", "\xe2\x82", "\xed\xa0\x80",
                            "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_NE(ErrorOf(std::string("{\"a\":\"") + bytes + "\"}").find("UTF-8"), std::string::npos) << bytes;
  }
}

TEST(CheckJsonText, RefusesAKeyTwice) {
  EXPECT_NE(ErrorOf(R"({"a":1,"b":2,"a":3})").find("key twice"), std::string::npos);
  EXPECT_NE(ErrorOf(R"([{"x":{"a":1,"\u0061":2}}])").find("key twice"), std::string::npos);
  EXPECT_TRUE(CheckJsonText(R"({"a":{"a":{"a":1}},"b":{"a":1}})").ok());
}

TEST(CheckJsonText, BoundsDepthAndMembers) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(CheckJsonText(nested(kMaxJsonDepth)).ok());
  EXPECT_NE(ErrorOf(nested(kMaxJsonDepth + 1)).find("too deeply"), std::string::npos);
  EXPECT_FALSE(CheckJsonText(std::string(5'000'000, '[')).ok());
  EXPECT_FALSE(CheckJsonText(std::string(5'000'000, '{')).ok());
  std::string many = "{";
  for (size_t i = 0; i < kMaxJsonMembers; ++i) many += '"' + std::to_string(i) + "\":1,";
  EXPECT_NE(ErrorOf(many + "\"x\":1}").find("too many"), std::string::npos);
  many.back() = '}';
  EXPECT_TRUE(CheckJsonText(many).ok());
}

TEST(CheckJsonText, CountsWhatValuesTake) {
  const auto many = [](std::string_view value, size_t count) {
    std::string text = "[";
    for (size_t i = 0; i < count; ++i) text.append(value).append(",");
    text.back() = ']';
    return text;
  };
  // Bytes alone: below the limit by far.
  for (const char* value : {"{}", "[]", "1", "\"\"", "{\"a\":{}}"}) {
    EXPECT_TRUE(CheckJsonText(many(value, 1000), 1 << 20).ok()) << value;
    EXPECT_TRUE(absl::IsResourceExhausted(CheckJsonText(many(value, 100'000), 1 << 20))) << value;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(CheckJsonText('"' + std::string(1 << 20, 'x') + '"', 1 << 20)));
  const std::string table_like = many(R"({"device_id":"0","device_ip":"10.0.0.1","rank_id":"12345"})", 100'000);
  EXPECT_TRUE(CheckJsonText(table_like).ok()) << "a hundred thousand devices";
  const std::string server_like =
      many(R"({"server_id":"10.123.123.123","pod_name":"job-worker-100000","device":[{"device_id":"0",)"
           R"("device_ip":"11.123.123.123","rank_id":"100000"}]})",
           100'000);
  EXPECT_TRUE(CheckJsonText(server_like).ok()) << "a hundred thousand nodes";
}

TEST(CheckJsonText, SaysWhere) {
  EXPECT_EQ(ErrorOf("{\n \"a\": x}"), "is not valid JSON: line 2, byte 7: a value is expected here");
}

TEST(JsonReader, ReadsWhatItIsAskedForAndSkipsTheRest) {
  const std::string text =
      R"( { "skip" : [ {"]":"}\"" } , 1 ] , "\u0061" : "x\n" , "list" : [ 1.50 , "t" , {} ] , "e" : {} } )";
  ASSERT_TRUE(CheckJsonText(text).ok());
  std::deque<std::string> decoded;
  JsonReader reader(text, &decoded);
  std::string seen;
  reader.ForEachMember([&](std::string_view key) {
    seen += key;
    if (key == "a") seen += reader.ReadString();
    if (key == "list") {
      reader.ForEachElement([&] {
        seen += reader.First();
        if (reader.First() != '1') return;
        const JsonSpan span = reader.Skip();
        seen += text.substr(span.begin, span.end - span.begin);
      });
    }
    seen += ';';
  });
  EXPECT_EQ(seen, "skip;ax\n;list11.50\"{;e;");
  EXPECT_EQ(reader.at(), text.size() - 1);
}

TEST(JsonPathsAt, NamesValuesByTheirPlace) {
  const std::string text = R"({"a":1,"b":[2,{"c":[3,4]},5],"d":6})";
  const auto at = [&](char c) { return static_cast<uint32_t>(text.find(c)); };
  EXPECT_EQ(JsonPathsAt(text, {at('6'), at('4'), 0, at('1'), at('5'), at('4')}),
            (std::vector<std::string>{"d", "b[1].c[1]", "", "a", "b[2]", "b[1].c[1]"}));
}

}  // namespace
}  // namespace taskd::ranktable
