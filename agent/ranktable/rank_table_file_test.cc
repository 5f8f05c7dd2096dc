#include "agent/ranktable/rank_table_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {
namespace {

constexpr const char* kTable =
    R"({"version":"1.0","status":"completed","server_list":[{"server_id":"a","device":[{"device_id":"0","rank_id":"0"}]}]})";

class RankTableFile : public ::testing::Test {
 protected:
  RankTableFile() {
    std::string name = ::testing::TempDir() + "/rank_table_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~RankTableFile() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, std::string_view text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

TEST_F(RankTableFile, Check) {
  EXPECT_TRUE(CheckRankTableFile(Write("t.json", kTable), ChipRules::kAny)->ok());
  const auto wrong_name = CheckRankTableFile(Write("t.txt", kTable), ChipRules::kAny);
  ASSERT_EQ(wrong_name->errors.size(), 1u);
  EXPECT_NE(wrong_name->errors[0].text.find(".json"), std::string::npos);
  EXPECT_FALSE(wrong_name->table.has_value());
}

TEST_F(RankTableFile, ByteOrderMarkIsNoPartOfTheText) {
  EXPECT_TRUE(CheckRankTableFile(Write("t.json", std::string("\xef\xbb\xbf") + kTable), ChipRules::kAny)->ok());
  EXPECT_EQ(*ReadRankTableFile(folder_ / "t.json"), kTable);
}

TEST_F(RankTableFile, WhatCannotBeRead) {
  EXPECT_TRUE(absl::IsNotFound(CheckRankTableFile(folder_ / "no.json", ChipRules::kAny).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRankTableFile(folder_, ChipRules::kAny).status()));
  const std::string fifo = folder_ / "fifo.json";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRankTableFile(fifo, ChipRules::kAny).status()));
  std::filesystem::create_symlink("/dev/zero", folder_ / "zero.json");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRankTableFile(folder_ / "zero.json", ChipRules::kAny).status()));
  const std::string huge = Write("huge.json", "{}");
  std::filesystem::resize_file(huge, kDefaultInputBytes + 1);  // a hole
  const absl::Status too_big = CheckRankTableFile(huge, ChipRules::kAny).status();
  EXPECT_TRUE(absl::IsResourceExhausted(too_big));
  EXPECT_EQ(std::string(too_big.message()),
            huge + ": takes more than 64 MiB unpacked and read; --max-input-mb is the limit");
  EXPECT_TRUE(absl::IsResourceExhausted(WaitForRankTable(huge, ChipRules::kAny, [] { return true; }).status()))
      << "nothing to wait for";
  const absl::Status cut = CheckRankTableFile(Write("cut.json", "{\"version\""), ChipRules::kAny).status();
  EXPECT_TRUE(absl::IsInvalidArgument(cut));
  EXPECT_NE(std::string(cut.message()).find("cut.json"), std::string::npos);
}

TEST_F(RankTableFile, WaitsUntilItIsCompleted) {
  const std::string path = folder_ / "t.json";
  const std::vector<std::string> steps = {"", "{\"stat", R"({"status":"initializing"})", kTable};
  size_t step = 0;
  const auto table = WaitForRankTable(path, ChipRules::kAny, [&] {
    Write("t.json", steps.at(step++));
    return true;
  });
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(step, steps.size());
  EXPECT_EQ(table->servers.size(), 1u);
}

TEST_F(RankTableFile, WaitingEnds) {
  const std::string path = Write("t.json", R"({"status":"initializing"})");
  int pauses = 0;
  const absl::Status status = WaitForRankTable(path, ChipRules::kAny, [&] { return ++pauses < 3; }).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(std::string(status.message()).find("initializing"), std::string::npos);
  EXPECT_EQ(pauses, 3);
  // Permanent errors are reported at once.
  Write("t.json", R"({"version":"9","status":"completed"})");
  const absl::Status broken = WaitForRankTable(path, ChipRules::kAny, [] { return ADD_FAILURE(), false; }).status();
  EXPECT_TRUE(absl::IsInvalidArgument(broken)) << broken;
}

TEST_F(RankTableFile, WhatIsNoJsonAndStaysSoIsBroken) {
  const std::string path = Write("t.json", "{\"stat");
  int pauses = 0;
  const absl::Status status = WaitForRankTable(path, ChipRules::kAny, [&] { return ++pauses < 100; }).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(pauses, kRankTableLooks - 1);
  // While it grows there is hope.
  pauses = 0;
  std::string text = "{";
  const absl::Status grows = WaitForRankTable(path, ChipRules::kAny, [&] {
                               Write("t.json", text += " ");
                               return ++pauses < 10;
                             }).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(grows)) << grows;
}

}  // namespace
}  // namespace taskd::ranktable
