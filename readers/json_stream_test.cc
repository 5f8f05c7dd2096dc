#include "readers/json_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "common/unique_fd.h"

namespace taskd::readers {
namespace {

using ::testing::HasSubstr;

// Records the calls as a text.
class Recorder : public JsonHandler<Recorder> {
 public:
  explicit Recorder(JsonStream& stream) : JsonHandler(stream) {}

  bool Name(std::string_view name) { return Add("N:", name); }
  bool Text(std::string_view text) { return Add("T:", text); }
  bool Number(std::string_view text) { return Add("#:", text); }
  bool Bool(bool value) { return Add(value ? "true" : "false", ""); }
  bool Other() { return Add("null", ""); }
  bool Begin(bool is_array) { return Add(is_array ? "[" : "{", std::to_string(depth())); }
  bool End(bool is_array) { return Add(is_array ? "]" : "}", std::to_string(depth())); }

  std::string calls;

 private:
  bool Add(std::string_view what, std::string_view text) {
    calls.append(calls.empty() ? "" : " ").append(what).append(text);
    return calls.find("stop") == std::string::npos;
  }
};

struct Result {
  std::string calls, note;
};

// Reads the value, or with `until` the value that begins there.
Result Read(const std::string& text, bool may_lack_commas = false, char until = 0) {
  const UniqueFd fd(memfd_create("json", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  absl::StatusOr<ByteSource> source = ByteSource::Open("/proc/self/fd/" + std::to_string(fd.get()));
  EXPECT_TRUE(source.ok()) << source.status();
  auto stream = std::make_unique<JsonStream>(*source, may_lack_commas);
  if (until != 0 && !stream->SkipTo(until)) return {"", "nothing"};
  Recorder recorder(*stream);
  std::string note = ReadJson(*source, *stream, recorder);
  return {recorder.calls, note};
}

TEST(JsonStream, HandsOverWhatItReads) {
  const Result result = Read(R"( {"a" : [1, -2.5e+3 ,"x", {}, []], "b":{"c":true,"d":false}, "e":null} behind it)");
  EXPECT_EQ(result.note, "");
  EXPECT_EQ(result.calls, "{1 N:a [2 #:1 #:-2.5e+3 T:x {3 }2 [3 ]2 ]1 N:b {2 N:c true N:d false }1 N:e null }0");
  for (const char* scalar : {"7", "\"7\"", " true ", "\xef\xbb\xbfnull"}) EXPECT_EQ(Read(scalar).note, "") << scalar;
}

TEST(JsonStream, UnpacksEscapes) {
  EXPECT_EQ(Read(R"("a\"\\\/\b\f\n\r\t\u00e4\u20AC\ud83d\ude00z")").calls,
            "T:a\"\\/\b\f\n\r\t\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z");
  // Half a surrogate pair is invalid, and so are two halves that do not match.
  EXPECT_EQ(Read(R"("\ud83d-\ude00")").calls, "T:\xef\xbf\xbd-\xef\xbf\xbd");
  EXPECT_EQ(Read(R"("\ud83d\ud83d\ude00")").calls, "T:\xef\xbf\xbd\xf0\x9f\x98\x80");
}

TEST(JsonStream, ReadsWhatIsNearlyJson) {
  const std::string text = R"({"a":1 "b":["x" "y",2] "c":{}})";
  EXPECT_EQ(Read(text, true).calls, "{1 N:a #:1 N:b [2 T:x T:y #:2 ]1 N:c {2 }1 }0");
  EXPECT_EQ(Read(text).note, "it is damaged at byte 7");
  EXPECT_EQ(Read("[1 2]", true).note, "it is damaged at byte 3");
  EXPECT_EQ(Read(std::string(100'000, '-') + "{}", false, '{').calls, "{1 }0");
  EXPECT_EQ(Read("no object", false, '{').note, "nothing");
}

TEST(JsonStream, TellsDamageFromACut) {
  for (const char* text :
       {"[1,]", "[,1]", "{,}",  "{\"a\":1,}", "{\"a\" 1}", "{1:2}",      "[1}",     "{\"a\":1]",   "nul!", "[01]",
        "[1.]", "[-]",  "[+1]", "[1e]",       "[.5]",      "[\"a\nb\"]", "\"\\x\"", "\"\\u12g4\"", "]",    "tru]"}) {
    EXPECT_THAT(Read(text).note, ::testing::StartsWith("it is damaged at byte")) << text;
  }
  for (const char* text :
       {"", " ", "[", "[1", "[1,", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1", "\"\\", "\"\\u12", "tru"}) {
    EXPECT_THAT(Read(text).note, ::testing::StartsWith("it is cut at byte")) << text;
  }
  EXPECT_EQ(Read("[1, x]").note, "it is damaged at byte 4");
  EXPECT_EQ(Read("[1, \"stop\", 2]").calls, "[1 #:1 T:stop");
}

TEST(JsonStream, TokensMayLieAcrossItsBuffer) {
  // The buffer is 64 KiB: each token of this text meets its end for some of these beginnings.
  const std::string tail = R"(abc\u20ac\ud83d\ude00def", -12.5e3, true, "g"])";
  const std::string calls =
      "abc\xe2\x82\xac\xf0\x9f\x98\x80"
      "def #:-12.5e3 true T:g ]0";
  for (size_t before = (64 << 10) - tail.size() - 8; before < (64 << 10); ++before) {
    const std::string text = "[\"" + std::string(before, 'x') + tail;
    const Result result = Read(text);
    ASSERT_EQ(result.note, "") << before;
    ASSERT_EQ(result.calls, "[1 T:" + std::string(before, 'x') + calls) << before;
  }
}

TEST(JsonStream, IsBounded) {
  const std::string long_text(JsonStream::kMaxToken + (1 << 17), 'x');
  EXPECT_THAT(Read("[\"" + long_text + "\"]").note, HasSubstr("a string of more than 16 MiB at byte"));
  EXPECT_THAT(Read("[" + std::string(long_text.size(), '1') + "]").note, HasSubstr("a string of more than 16 MiB"));
  constexpr size_t kDepth = JsonHandler<Recorder>::kMaxDepth;
  EXPECT_EQ(Read(std::string(kDepth, '[') + std::string(kDepth, ']')).note, "");
  EXPECT_EQ(Read(std::string(kDepth + 1, '[') + std::string(kDepth + 1, ']')).note, "it is damaged at byte 257");
}

}  // namespace
}  // namespace taskd::readers
