#include "common/json_scanner.h"

#include <gtest/gtest.h>

#include <string>

namespace taskd {
namespace {

// What was read of `text`, or where and why it cannot be: "a[1 2]" of {"a": [1, 2]}.
std::string Read(JsonScanner& scanner, std::string& seen) {
  std::string_view token;
  const auto separate = [&] {
    if (!seen.empty() && seen.back() != '[' && seen.back() != '{') seen += ' ';
  };
  bool read = false;
  switch (scanner.Peek()) {
    case '{':
      separate();
      seen += '{';
      read = scanner.Members([&](std::string_view key) {
        separate();
        seen.append(key).append(":");
        return Read(scanner, seen).empty();
      });
      seen += '}';
      break;
    case '[':
      separate();
      seen += '[';
      read = scanner.Elements([&] { return Read(scanner, seen).empty(); });
      seen += ']';
      break;
    case '"':
      read = scanner.String(&token);
      separate();
      seen += token;
      break;
    default:
      read = scanner.Number(&token);
      separate();
      seen += token;
  }
  return read ? "" : std::to_string(scanner.at()) + ": " + std::string(scanner.why());
}

std::string Read(std::string_view text) {
  JsonScanner scanner(text);
  std::string seen;
  const std::string error = Read(scanner, seen);
  if (!error.empty()) return error;
  return scanner.End() ? seen : std::to_string(scanner.at()) + ": " + std::string(scanner.why());
}

std::string Skip(std::string_view text, int depth = 8) {
  JsonScanner scanner(text);
  if (scanner.Skip(depth) && scanner.End()) return "";
  return std::to_string(scanner.at()) + ": " + std::string(scanner.why());
}

TEST(JsonScanner, HandsOverWhatLiesThere) {
  EXPECT_EQ(Read(R"( {"a" : [1, -2.5e+3 ,"x\n\u00e4", {}, []], "b":{"":0}} )"),
            R"({a: [1 -2.5e+3 x\n\u00e4 {} []] b: {: 0}})");
  EXPECT_EQ(Read("\r\n\t\"\xc3\xa9\xf0\x9f\x98\x80\" "), "\xc3\xa9\xf0\x9f\x98\x80");
}

TEST(JsonScanner, MeasuresNumbers) {
  for (const char* text : {"0", "-0", "7", "16384", "-12.50", "1e5", "1.5E-30", "0e+0"}) {
    EXPECT_EQ(JsonNumberLength(text), std::string_view(text).size()) << text;
    EXPECT_EQ(JsonNumberLength(std::string(text) + ",1"), std::string_view(text).size()) << text;
  }
  for (const char* text : {"", "-", "+1", ".5", "x", "-x", "-.5"}) EXPECT_EQ(JsonNumberLength(text), 0u) << text;
  for (const char* text : {"01", "1.", "1.x", "1e", "1e+", "1-"}) EXPECT_EQ(JsonNumberLength(text), 1u) << text;
  EXPECT_EQ(JsonNumberLength("1.5e"), 3u);
}

TEST(JsonScanner, SkipsAnyValue) {
  for (const char* text : {"{}", "[]", " [ ] ", "\"\"", "0", "-0", "1.5e-3", "1E+2", "true", "false", "null",
                           R"({"a":[1,"2",{"b":null}],"c":{"a":1}})", R"("\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00")"}) {
    EXPECT_EQ(Skip(text), "") << text;
  }
  EXPECT_EQ(Skip("[[[]]]", 3), "");
  EXPECT_EQ(Skip("[[[]]]", 2), "2: nested too deeply");
  EXPECT_EQ(Skip("1", 0), "");
  EXPECT_EQ(Skip(std::string(5'000'000, '[')), "8: nested too deeply");
}

TEST(JsonScanner, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(Skip(""), "0: a value is expected here");
  EXPECT_EQ(Skip("[1,]"), "3: a value is expected here");
  EXPECT_EQ(Skip("[1 2]"), "3: ',' or ']' is expected here");
  EXPECT_EQ(Skip("[01]"), "2: ',' or ']' is expected here");
  EXPECT_EQ(Skip("[1.]"), "2: ',' or ']' is expected here");
  EXPECT_EQ(Skip("[-]"), "1: a value is expected here");
  EXPECT_EQ(Skip("+1"), "0: a value is expected here");
  EXPECT_EQ(Skip("nul"), "0: a value is expected here");
  EXPECT_EQ(Skip("truee"), "4: there is more after the end of the document");
  EXPECT_EQ(Skip(R"({"a" 1})"), "5: ':' is expected here");
  EXPECT_EQ(Skip(R"({"a":1,})"), "7: a key in quotes is expected here");
  EXPECT_EQ(Skip(R"({"a":1])"), "6: ',' or '}' is expected here");
  EXPECT_EQ(Skip("\"a\nb\""), "2: a control character inside a string");
  EXPECT_EQ(Skip("\"a\xc3(\""), "2: bytes that are not UTF-8");
  EXPECT_EQ(Skip("\"a"), "2: the text ends inside a string");
  EXPECT_EQ(Skip("\"\\"), "1: an escape that JSON does not know");
  EXPECT_EQ(Skip("\"\\x\""), "1: an escape that JSON does not know");
  EXPECT_EQ(Skip("\"\\u12g4\""), "1: \\u without four hexadecimal digits");
  EXPECT_EQ(Skip("{} {}"), "3: there is more after the end of the document");
  EXPECT_EQ(Skip(std::string_view("1\0", 2)), "1: there is more after the end of the document");
  EXPECT_EQ(Skip(std::string_view("\0", 1)), "0: a value is expected here");
  JsonScanner scanner("7");
  EXPECT_FALSE(scanner.Members([](std::string_view) { return true; }));
  EXPECT_EQ(scanner.why(), "an object is expected here");
}

}  // namespace
}  // namespace taskd
