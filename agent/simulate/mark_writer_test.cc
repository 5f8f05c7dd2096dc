#include "agent/simulate/mark_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "marks/mark_file_reader.h"
#include "marks/parallel_group.h"

namespace taskd::simulate {
namespace {

using ::testing::HasSubstr;

class MarkWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "mark_writer_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string Text(const std::string& path) const {
    std::ifstream file(dir_ + "/" + path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Runs `job` into the folder.
  std::unique_ptr<Simulator> Write(const Job& job) {
    std::unique_ptr<Simulator> simulator = *Simulator::Create(job);
    MarkWriter writer(dir_);
    while (simulator->Next()) EXPECT_TRUE(writer.WriteStep(*simulator).ok());
    EXPECT_TRUE(writer.Finish(*simulator).ok());
    written_ = writer.records();
    return simulator;
  }

  std::string dir_;
  uint64_t written_ = 0;
};

Job SmallJob() {
  Job job;
  job.layout = {.tp = 2, .dp = 2, .pp = 2, .ranks_per_node = 4, .microbatches = 2, .layers = 1};
  job.steps = 4;
  job.checkpoint_every = 2;
  return job;
}

TEST_F(MarkWriterTest, ReadsBackAsItWas) {
  Job job = SmallJob();
  Write(job);
  auto simulator = *Simulator::Create(job);
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_ + "/3");
  ASSERT_TRUE(reader.ok()) << reader.status();
  uint64_t records = 0;
  while (simulator->Next()) {
    for (const MarkRecord& mark : simulator->Marks(3)) {
      MarkRecord read;
      ASSERT_TRUE(reader->Next(read));
      ++records;
      EXPECT_EQ(read.phase, mark.phase);
      EXPECT_EQ(read.device, mark.device);
      EXPECT_EQ(read.time_ns, mark.time_ns);
      EXPECT_EQ(read.id, mark.id);
      EXPECT_EQ(read.process_id, mark.process_id);
      EXPECT_EQ(read.thread_id, mark.thread_id);
      EXPECT_EQ(read.name, mark.name);
      EXPECT_EQ(read.domain, mark.domain);
    }
  }
  MarkRecord none;
  EXPECT_FALSE(reader->Next(none));
  EXPECT_EQ(reader->broken_lines(), 0u);
  EXPECT_GT(written_, 4 * records);  // of all ranks
}

TEST_F(MarkWriterTest, NamesAreEscapedAsTorchNpuDoes) {
  Write(SmallJob());
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/0")) {
    const std::string name = entry.path().filename();
    if (name[0] != '1') continue;
    EXPECT_EQ(name.size(), 10u);
    const std::string text = Text("0/" + name);
    EXPECT_THAT(text, HasSubstr(R"("Name":"{\"count\": \")"));
    EXPECT_THAT(text, HasSubstr(R"("Flag":2,"SourceKind":0)"));
    EXPECT_THAT(text, HasSubstr(R"("Flag":32,"SourceKind":1)"));
  }
}

TEST_F(MarkWriterTest, GroupsAndRankBesideThem) {
  auto simulator = Write(SmallJob());
  absl::StatusOr<std::vector<GroupInfo>> groups = ReadParallelGroups(dir_ + "/5/parallel_group.json");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(*groups, simulator->groups(5));
  EXPECT_EQ(Text("5/.rank.json"), "{\"node\":1,\"host\":\"node1\",\"local_rank\":1}\n");
}

TEST_F(MarkWriterTest, LabelsTellTheTruth) {
  Job job = SmallJob();
  job.steps = 20;
  Fault fault;
  fault.targets = {6};
  fault.severity = 2;
  fault.first_step = 10;
  job.faults = {fault};
  Write(job);
  const std::string labels = Text("labels.json");
  EXPECT_THAT(labels, HasSubstr(R"("faults":[{"kind":"compute","scope":"rank","ids":[6],"causes":["compute"],)"));
  EXPECT_THAT(labels, HasSubstr(R"("first_step":10,"last_step":19,"severity":2,"effect":0.)"));
}

TEST_F(MarkWriterTest, FilesAreFollowedByNewOnes) {
  Job job;
  job.layout = {.tp = 8, .dp = 1, .ranks_per_node = 8, .microbatches = 64, .layers = 8};
  job.steps = 13;  // each of 4,000 records and 1 MiB
  Write(job);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/0")) {
    if (entry.path().filename().string()[0] != '1') continue;
    ++files;
    EXPECT_LT(entry.file_size(), 11u << 20);
  }
  EXPECT_GE(files, 2);
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(dir_ + "/0");
  ASSERT_TRUE(reader.ok());
  uint64_t last = 0, records = 0;
  for (MarkRecord mark; reader->Next(mark); ++records) {
    EXPECT_GE(mark.time_ns, last);
    last = mark.time_ns;
  }
  EXPECT_EQ(records * 8, written_);
}

TEST_F(MarkWriterTest, RestartGoesOnInTheSameFolders) {
  Job job = SmallJob();
  job.steps = 6;
  job.restart_step = 3;
  job.restart_dp = 4;
  Write(job);
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/15/parallel_group.json"));
  // Rank 3 is in another group now.
  absl::StatusOr<std::vector<GroupInfo>> groups = ReadParallelGroups(dir_ + "/3/parallel_group.json");
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->back().members[0].count, 16);
}

TEST_F(MarkWriterTest, FolderMustHoldNoRanks) {
  EXPECT_TRUE(CheckOutput(dir_).ok());
  EXPECT_TRUE(CheckOutput(dir_ + "/new").ok());
  std::ofstream(dir_ + "/notes.txt") << "mine";
  EXPECT_TRUE(CheckOutput(dir_).ok());
  std::filesystem::create_directory(dir_ + "/12");
  absl::Status status = CheckOutput(dir_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds rank 12"));
  EXPECT_EQ(CheckOutput(dir_ + "/notes.txt").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace taskd::simulate
