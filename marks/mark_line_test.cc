#include "marks/mark_line.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

std::string Line(const MarkLine& mark) {
  std::string out;
  AppendMarkLine(mark, out);
  return out;
}

MarkLine Named(std::string_view name, std::string_view domain = "default") {
  return {.flag = 16, .timestamp_ns = 1, .id = 1, .process_id = 1, .thread_id = 1, .name = name, .domain = domain};
}

std::string NameOf(const std::string& line) { return nlohmann::json::parse(line).at("Name").get<std::string>(); }

// This is the example of TaskD contract §4.5, byte for byte.
TEST(MarkLine, HasTheContractsForm) {
  EXPECT_EQ(
      Line({.flag = 16,
            .timestamp_ns = 1745567190000000000,
            .id = 7,
            .process_id = 123,
            .thread_id = 456,
            .name = "step 1",
            .domain = "default"}),
      R"({"Kind":1,"Flag":16,"SourceKind":0,"Timestamp":1745567190000000000,"Id":7,"MsptiObjectId":)"
      R"({"Pt":{"ProcessId":123,"ThreadId":456},"Ds":{"DeviceId":123,"StreamId":456}},"Name":"step 1","Domain":"default"})"
      "\n");
}

TEST(MarkLine, AnEndHasEmptyNames) {
  EXPECT_TRUE(Line({.flag = 32, .timestamp_ns = 2, .id = 7, .process_id = 1, .thread_id = 1, .name = {}, .domain = {}})
                  .ends_with(R"("Name":"","Domain":""})"
                             "\n"));
}

TEST(MarkLine, EscapesAsGoDoes) {
  const std::string line = Line(Named("a\"b\\c\nd\re\tf\x01g<h>i&j\u2028k"));
  EXPECT_NE(line.find(R"(a\"b\\c\nd\re\tf\u0001g\u003ch\u003ei\u0026j\u2028k)"), std::string::npos) << line;
  EXPECT_EQ(NameOf(line), "a\"b\\c\nd\re\tf\x01g<h>i&j\u2028k");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

TEST(MarkLine, InvalidUtf8BecomesTheReplacementCharacter) {
  for (std::string_view bad : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80"}) {
    std::string name = NameOf(Line(Named(std::string("a") + std::string(bad) + "z")));
    EXPECT_EQ(name.front(), 'a');
    EXPECT_EQ(name.back(), 'z');
    EXPECT_NE(name.find("\uFFFD"), std::string::npos);
  }
  EXPECT_EQ(NameOf(Line(Named("größe 步 \U0001F600"))), "größe 步 \U0001F600");
}

TEST(MarkLine, ACutNameEndsWithAWholeCharacter) {
  MarkLine mark = Named("abc\xe6\xad");
  mark.cut = true;
  EXPECT_EQ(NameOf(Line(mark)), "abc");
  mark.name = "abc\xe6\xad\xa5";
  EXPECT_EQ(NameOf(Line(mark)), "abc\xe6\xad\xa5");
  mark.name = "abc";
  EXPECT_EQ(NameOf(Line(mark)), "abc");
}

// TaskD contract §4.4: torch_npu sends communication names with their quotes escaped.
TEST(MarkLine, EscapedAndPlainCommunicationNamesReadBackAsTheSameJson) {
  const std::string plain = R"({"count": "1024","dataType": "bfp16","groupName": "g","opName": "HcclAllreduce"})";
  std::string escaped;
  for (char c : plain) {
    if (c == '"') escaped += '\\';
    escaped += c;
  }
  const std::string from_plain = Line(Named(plain, "communication"));
  EXPECT_EQ(from_plain, Line(Named(escaped, "communication")));
  EXPECT_EQ(nlohmann::json::parse(NameOf(from_plain)).at("count"), "1024");
}

TEST(MarkLine, HalvesOfSurrogatePairsAreNotJson) {
  const std::string whole = Line(Named(R"({\"a\": \"\ud83d\ude00\"})", "communication"));
  EXPECT_EQ(nlohmann::json::parse(NameOf(whole)).at("a"), "\U0001F600");
  for (std::string_view name : {R"({\"a\": \"\ude00\"})", R"({\"a\": \"\ud83d\"})", R"({\"a\": \"\ud83dx\"})",
                                R"({\"a\": \"\ud83d\ud83d\"})", R"(\"\ud83d)", R"(\"\ud8)"}) {
    EXPECT_EQ(NameOf(Line(Named(name, "communication"))), name);
  }
}

TEST(MarkLine, AnythingElseInTheCommunicationDomainIsOneValidLine) {
  for (std::string_view name : {R"(C:\temp\new)", R"(a\")", R"(\)", R"({\"cut\": \"off)", R"({\"a\": "mixed"})",
                                "plain", R"({\"bad\": \"\x\"})", "{\\\"a\\\": \\\"\xff\\\"}", "line\nbreak \\\"", ""}) {
    const std::string line = Line(Named(name, "communication"));
    EXPECT_TRUE(nlohmann::json::parse(line).is_object()) << line;
    EXPECT_EQ(line.find('\n'), line.size() - 1);
  }
  // In other domains a backslash is an ordinary character.
  EXPECT_EQ(NameOf(Line(Named(R"({\"a\": 1})"))), R"({\"a\": 1})");
}

TEST(MarkLine, ReadsItsOwnLines) {
  std::string line = Line(Named("st\"ep", "communication"));
  line.pop_back();
  std::optional<MarkLine> read = ParseMarkLine(line);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->flag, 16u);
  EXPECT_EQ(read->name, R"(st\"ep)");
  EXPECT_EQ(read->domain, "communication");
  for (size_t cut = 0; cut < line.size(); ++cut) EXPECT_FALSE(ParseMarkLine(line.substr(0, cut)).has_value());
  EXPECT_FALSE(ParseMarkLine(line + "x").has_value());
}

}  // namespace
}  // namespace taskd
