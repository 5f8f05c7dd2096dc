// Files as a watchdog leaves them: late, one after the other, and not at once whole.
#include "agent/evidence/dump_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/realtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::evidence {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;

std::string Dump(int rank, const std::string& state = "started", int world_size = 2) {
  return absl::StrCat(R"({"version":"2.10","rank":)", rank,
                      R"(,"pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[)",
                      world_size == 2 ? "0, 1" : "0, 1, 2", R"(]"}},"entries":[{"record_id":0,"collective_seq_id":1,)",
                      R"("process_group":["0","default_pg"],"profiling_name":"nccl:all_reduce","time_created_ns":5,)",
                      R"("state":")", state, R"("}]})");
}

class DumpFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/taskd-dump-files-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    prefix_ = absl::StrCat(folder, "/rank_");
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(int rank, const std::string& text) const {
    std::ofstream(absl::StrCat(prefix_, rank), std::ios::binary) << text;
  }
  // As of so long ago.
  void Age(int rank, int64_t seconds) const {
    const timespec time{(RealtimeNs() / kSecondNs) - seconds, 0};
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, absl::StrCat(prefix_, rank).c_str(), times, 0), 0);
  }
  DumpFiles Files() const { return DumpFiles({prefix_}, {0, 1}, 2, RealtimeNs() - 60 * kSecondNs); }
  static std::vector<int> Ranks(const DumpFiles& files) {
    std::vector<int> ranks;
    for (const auto& [rank, known] : files.facts().ranks) ranks.push_back(rank);
    return ranks;
  }

  std::string folder_, prefix_;
};

TEST_F(DumpFilesTest, OneAfterTheOther) {
  DumpFiles files = Files();
  EXPECT_FALSE(files.Look());
  Write(1, Dump(1));
  EXPECT_FALSE(files.Look()) << "it may still grow";
  EXPECT_TRUE(files.Look());
  EXPECT_THAT(Ranks(files), ElementsAre(1));
  EXPECT_FALSE(files.Look()) << "nothing is new";
  Write(0, Dump(0, "completed"));
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_THAT(Ranks(files), ElementsAre(0, 1));
  ASSERT_EQ(files.sources().size(), 2u);
  EXPECT_EQ(files.sources()[1].path, prefix_ + "1");
  EXPECT_EQ(files.sources()[1].format, readers::SourceFormat::kFlightRecorder);
  EXPECT_EQ(files.sources()[1].records, 1u);
}

TEST_F(DumpFilesTest, FileThatGrowsIsReadWhenItIsWhole) {
  DumpFiles files = Files();
  const std::string whole = Dump(1);
  Write(1, "");
  files.Look();
  EXPECT_FALSE(files.Look()) << "nothing is in it yet";
  for (size_t size = 10; size < whole.size(); size += 40) {
    Write(1, whole.substr(0, size));
    EXPECT_FALSE(files.Look());
  }
  Write(1, whole);
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_EQ(files.sources()[0].note, "");
  EXPECT_FALSE(files.facts().ranks.at(1).is_partial);
}

TEST_F(DumpFilesTest, FileThatStaysCutCountsAsFarAsItGoesAndAgainWhenItIsWhole) {
  DumpFiles files = Files();
  const std::string whole = Dump(1);
  Write(1, whole.substr(0, whole.size() - 2));
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_NE(files.sources()[0].note, "");
  EXPECT_TRUE(files.facts().ranks.at(1).is_partial);
  Write(1, whole);
  EXPECT_FALSE(files.Look());
  EXPECT_EQ(files.facts().ranks.size(), 1u) << "what was known stays";
  EXPECT_TRUE(files.Look());
  EXPECT_EQ(files.sources()[0].note, "");
}

TEST_F(DumpFilesTest, WhatWasThereBeforeTheHangIsNotTaken) {
  Write(0, Dump(0));
  Age(0, 61);
  Write(1, Dump(1));
  Age(1, 59);
  DumpFiles files = Files();
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_THAT(Ranks(files), ElementsAre(1));
  EXPECT_EQ(files.sources().size(), 1u);
}

TEST_F(DumpFilesTest, WhatIsNoFileOfTheRankIsNotOpened) {
  std::ofstream(folder_ + "/elsewhere") << Dump(0);
  ASSERT_EQ(symlink((folder_ + "/elsewhere").c_str(), (prefix_ + "0").c_str()), 0);
  ASSERT_EQ(mkfifo((prefix_ + "1").c_str(), 0600), 0);
  DumpFiles files = Files();
  files.Look();
  EXPECT_FALSE(files.Look());
  EXPECT_THAT(files.sources(), IsEmpty());
}

TEST_F(DumpFilesTest, DumpsOfAnotherJobAndOtherFilesAreNamedAndLeftOut) {
  Write(0, Dump(0, "started", 3));
  Write(1, "\x80\x02}q.");
  DumpFiles files = Files();
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_THAT(Ranks(files), IsEmpty());
  EXPECT_THAT(files.sources()[0].note, HasSubstr("a job of 3 ranks"));
  EXPECT_THAT(files.sources()[1].note, HasSubstr("no dump"));
  Write(0, Dump(1));
  files.Look();
  EXPECT_TRUE(files.Look());
  EXPECT_THAT(files.sources()[0].note, HasSubstr("of rank 1"));
}

TEST_F(DumpFilesTest, OfSeveralPlacesTheNewestFileCounts) {
  const std::string other = folder_ + "/other_";
  Write(1, Dump(1));
  Age(1, 20);
  std::ofstream(other + "1") << Dump(1);
  DumpFiles files({prefix_, other}, {0, 1}, 2, RealtimeNs() - 60 * kSecondNs);
  files.Look();
  EXPECT_TRUE(files.Look());
  ASSERT_EQ(files.sources().size(), 1u);
  EXPECT_EQ(files.sources()[0].path, other + "1");
}

// contract: DebugInfoWriter::getWriter of PyTorch and of torch_npu: the first of its variables, else a file in the cache
// folder of the user, which is XDG_CACHE_HOME or ~/.cache; in older releases /tmp. torch_npu has a variable of its own.
TEST(DumpPrefixesTest, ThoseOfPyTorchAndTorchNpu) {
  EXPECT_THAT(DumpPrefixes({{"TORCH_FR_DUMP_TEMP_FILE", "/a/r"}, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/b/r"}}),
              ElementsAre("/tmp/hccl_trace_rank_", "/a/r", "/b/r"));
  EXPECT_THAT(DumpPrefixes({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/cache"}}),
              ElementsAre("/tmp/hccl_trace_rank_", "/cache/torch/comm_lib_trace_rank_",
                          "/home/u/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"));
  EXPECT_THAT(DumpPrefixes({{"TORCH_HCCL_DEBUG_INFO_TEMP_FILE", "./h"}, {"TORCH_FR_DUMP_TEMP_FILE", "/a"}}),
              ElementsAre("./h", "/a"));
  EXPECT_THAT(DumpPrefixes({}),
              ElementsAre("/tmp/hccl_trace_rank_", "/tmp/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"));
}

}  // namespace
}  // namespace taskd::evidence
