#include "marks/mark_file_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "marks/mark_line.h"

namespace taskd {
namespace {

// This is the example of TaskD contract §4.5.
constexpr std::string_view kLine =
    R"({"Kind":1,"Flag":16,"SourceKind":0,"Timestamp":1745567190000000000,"Id":7,"MsptiObjectId":)"
    R"({"Pt":{"ProcessId":123,"ThreadId":456},"Ds":{"DeviceId":123,"StreamId":456}},"Name":"step 1","Domain":"default"})";

std::string Line(uint64_t id, std::string_view name = "x") {
  std::string line;
  AppendMarkLine(
      {.flag = 2, .timestamp_ns = id, .id = id, .process_id = 1, .thread_id = 1, .name = name, .domain = "default"},
      line);
  return line;
}

TEST(ParseMarkRecord, ReadsTheContractsForm) {
  std::string storage;
  std::optional<MarkRecord> record = ParseMarkRecord(kLine, storage);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->phase, MarkRecord::Phase::kStart);
  EXPECT_FALSE(record->device);
  EXPECT_EQ(record->time_ns, 1745567190000000000u);
  EXPECT_EQ(record->id, 7u);
  EXPECT_EQ(record->process_id, 123u);
  EXPECT_EQ(record->thread_id, 456u);
  EXPECT_EQ(record->name, "step 1");
  EXPECT_EQ(record->domain, "default");
}

TEST(ParseMarkRecord, ReadsDeviceRecords) {
  std::string line;
  AppendMarkLine({.flag = 32,
                  .timestamp_ns = 5,
                  .id = 7,
                  .process_id = 3,
                  .thread_id = 2,
                  .name = {},
                  .domain = {},
                  .device = true},
                 line);
  EXPECT_NE(line.find(R"("SourceKind":1,)"), std::string::npos);
  line.pop_back();
  std::string storage;
  std::optional<MarkRecord> record = ParseMarkRecord(line, storage);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->phase, MarkRecord::Phase::kEnd);
  EXPECT_TRUE(record->device);
  EXPECT_EQ(record->process_id, 3u);
  EXPECT_EQ(record->name, "");
}

TEST(ParseMarkRecord, UnescapesNames) {
  std::string storage;
  for (std::string_view name :
       {R"({"count": "1","opName": "HcclSend"})", "a\nb\tc\\d/e", "<größe 步 \U0001F600>", "\x01\x7f\u2028", ""}) {
    std::string line = Line(1, name);
    line.pop_back();
    std::optional<MarkRecord> record = ParseMarkRecord(line, storage);
    ASSERT_TRUE(record.has_value()) << line;
    EXPECT_EQ(record->name, name);
    EXPECT_EQ(record->domain, "default");
  }
  const std::string with_pair = std::string(kLine.substr(0, kLine.find("step 1"))) + R"(\ud83d\ude00)" +
                                std::string(kLine.substr(kLine.find("step 1") + 6));
  EXPECT_EQ(ParseMarkRecord(with_pair, storage)->name, "\U0001F600");
}

// Python's json.dumps writes such spaces; the keys have another order.
TEST(ParseMarkRecord, ReadsAnyOrderAndSpaces) {
  std::string storage;
  std::optional<MarkRecord> record = ParseMarkRecord(
      R"({"Domain": "communication", "Name": "{\"a\": \"b\"}", "Id": 9, "Timestamp": 8, "MsptiObjectId": )"
      R"({"Ds": {"StreamId": 4, "DeviceId": 3}, "Pt": {"ThreadId": 2, "ProcessId": 1}}, "SourceKind": 1, "Flag": 16, )"
      R"("Kind": 1, "More": [1, 2]} )",
      storage);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->name, R"({"a": "b"})");
  EXPECT_EQ(record->domain, "communication");
  EXPECT_EQ(record->process_id, 3u);
  EXPECT_EQ(record->thread_id, 4u);
  EXPECT_TRUE(record->device);
}

TEST(ParseMarkRecord, RefusesWhatIsNoMark) {
  std::string storage;
  auto with = [](std::string_view from, std::string_view to) {
    std::string line(kLine);
    return line.replace(line.find(from), from.size(), to);
  };
  for (const std::string& line :
       {std::string(), std::string("{}"), std::string("null"), std::string(R"({"Kind":2,"Flag":16})"),
        with(R"("Flag":16)", R"("Flag":3)"), with(R"("Kind":1)", R"("Kind":2)"), with(R"("Id":7)", R"("Id":-7)"),
        with("1745567190000000000", "1e400"), with("1745567190000000000", "99999999999999999999"),
        with(R"("SourceKind":0)", R"("SourceKind":2)"), with(R"("step 1")", "17"), with("step 1", R"(st\ep 1)"),
        with(R"("ProcessId":123)", R"("ProcessId":4294967296)"), std::string(kLine.substr(0, 100)),
        std::string(5000, '[')}) {
    EXPECT_FALSE(ParseMarkRecord(line, storage).has_value()) << line;
  }
}

class MarkFileReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mark_file_reader_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& file, std::string_view text) {
    std::ofstream(dir_ + "/" + file, std::ios::app | std::ios::binary) << text;
  }
  static std::vector<uint64_t> Rest(MarkFileReader& reader) {
    std::vector<uint64_t> ids;
    for (MarkRecord record; reader.Next(record);) ids.push_back(record.id);
    return ids;
  }

  std::string dir_;
};

TEST_F(MarkFileReaderTest, ReadsFilesInTheOrderOfTheirNumbers) {
  Write("1000000000", Line(3));
  Write("999999999", Line(2));
  Write("0005", Line(1));
  Write("20000000000000000000000", Line(4));
  Write("parallel_group.json", "{}");
  Write(".rank.json", "{}");
  Write("12x", Line(9));
  ASSERT_EQ(symlink((dir_ + "/0005").c_str(), (dir_ + "/1000000001").c_str()), 0);
  ASSERT_EQ(mkdir((dir_ + "/1000000002").c_str(), 0755), 0);
  ASSERT_EQ(mkfifo((dir_ + "/1000000003").c_str(), 0644), 0);
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->total_bytes(), 4 * Line(1).size());
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(reader->read_bytes(), reader->total_bytes());
  EXPECT_EQ(reader->broken_lines(), 0u);
  EXPECT_TRUE(reader->status().ok());
}

TEST_F(MarkFileReaderTest, CountsBrokenLinesAndGoesOn) {
  Write("1", Line(1) + "torn {\n\n" + Line(2) + Line(3).substr(0, 50));
  Write("2", Line(4));
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_);
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(1, 2, 4));
  EXPECT_EQ(reader->broken_lines(), 2u);
}

TEST_F(MarkFileReaderTest, ALineThatIsBeingWrittenIsLeftForLater) {
  Write("1", Line(1) + Line(2).substr(0, 50));
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_);
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(1));
  EXPECT_EQ(reader->broken_lines(), 0u);
  Write("1", Line(2).substr(50) + Line(3));
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(2, 3));
  std::string last = Line(4);
  last.pop_back();
  Write("1", last);
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(4));
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre());
  Write("1", "\n" + Line(5));
  EXPECT_THAT(Rest(*reader), ::testing::ElementsAre(5));
  EXPECT_EQ(reader->broken_lines(), 0u);
}

TEST_F(MarkFileReaderTest, ReadsOverBlockBordersAndPastEndlessLines) {
  std::string text;
  std::vector<uint64_t> expected;
  for (uint64_t id = 1; id <= 5000; ++id) {
    text += Line(id, std::string(id % 251, 'n'));
    expected.push_back(id);
  }
  Write("1", text);
  Write("1", std::string(3'000'000, 'x') + "\n" + Line(6000));
  Write("2", std::string(3'000'000, 'x'));
  Write("3", Line(7000));
  expected.push_back(6000);
  expected.push_back(7000);
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(Rest(*reader), expected);
  EXPECT_EQ(reader->broken_lines(), 2u);
  EXPECT_EQ(reader->read_bytes(), reader->total_bytes());
}

TEST_F(MarkFileReaderTest, SaysWhatIsWrongWithADirectory) {
  EXPECT_EQ(MarkFileReader::Open(dir_ + "/none").status().code(), absl::StatusCode::kNotFound);
  Write("file", "");
  EXPECT_EQ(MarkFileReader::Open(dir_ + "/file").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(symlink(dir_.c_str(), (dir_ + "/link").c_str()), 0);
  EXPECT_EQ(MarkFileReader::Open(dir_ + "/link").status().code(), absl::StatusCode::kFailedPrecondition);
  absl::StatusOr<MarkFileReader> empty = MarkFileReader::Open(dir_);
  ASSERT_TRUE(empty.ok());
  EXPECT_THAT(Rest(*empty), ::testing::IsEmpty());
}

}  // namespace
}  // namespace taskd
