#include "agent/evidence/evidence_reader.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "agent/evidence/node_evidence.h"
#include "agent/evidence/testing/ras_server.h"
#include "common/realtime.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::evidence {
namespace {

using ::taskd::testing::Greet;
using ::taskd::testing::RasServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks 0 to 2 have launched one more than rank 3; rank 0 is process `pid`.
std::string Answer(pid_t pid, int number) {
  std::string ranks;
  for (int rank = 0; rank < 4; ++rank) {
    absl::StrAppend(&ranks, rank == 0 ? "" : ",", R"({"rank":)", rank, R"(,"host":"10.0.0.1","pid":)",
                    rank == 0 ? pid : 2'000'000'000 + rank, R"(,"cuda_dev":)", rank,
                    R"(,"status":{"async_error":0},"collective_counts":{"AllReduce":)", rank == 3 ? 4 : 5, "}}");
  }
  return absl::StrCat(R"({"timestamp":"2026-01-01 00:00:0)", number, R"(","communicators_count":1,"communicators":[)",
                      R"({"hash":"0x1","size":4,"ranks":[)", ranks, R"(],"missing_ranks":[]}]})");
}

class EvidenceReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/taskd-evidence-reader-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    rank_ = fork();
    if (rank_ == 0) {
      while (true) pause();
    }
    wish_ = {.hang = 1,
             .ranks = {{0, rank_}, {1, rank_}},
             .world_size = 4,
             .since_ns = RealtimeNs() - 1'000'000'000,
             .asks_ras = true};
  }
  void TearDown() override {
    kill(rank_, SIGKILL);
    waitpid(rank_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  EvidenceReader Reader(int ras_port, bool may_ask_ras = true) const {
    return EvidenceReader({{"NCCL_RAS_ADDR", absl::StrCat("127.0.0.1:", ras_port)},
                           {"TORCH_FR_DUMP_TEMP_FILE", folder_ + "/r_"},
                           {"TORCH_HCCL_DEBUG_INFO_TEMP_FILE", folder_ + "/r_"}},
                          may_ask_ras);
  }
  // What it has found once `is_enough` of that.
  template <typename IsEnough>
  NodeEvidence Await(EvidenceReader& reader, IsEnough is_enough) const {
    NodeEvidence evidence;
    EXPECT_TRUE(::taskd::testing::WaitUntil([&] {
      const std::string news = reader.Look(wish_);
      if (!news.empty()) {
        absl::StatusOr<NodeEvidence> decoded = DecodeEvidence(news);
        EXPECT_TRUE(decoded.ok()) << decoded.status();
        evidence = *std::move(decoded);
      }
      return is_enough(evidence);
    }));
    return evidence;
  }

  std::string folder_;
  pid_t rank_ = 0;
  EvidenceReader::Wish wish_;
};

bool HasRas(const NodeEvidence& evidence) { return evidence.ras.has_value(); }

TEST_F(EvidenceReaderTest, RasIsAskedTwiceAndDumpsAreReadMeanwhile) {
  std::atomic<int> answers{0};
  RasServer server([&](RasServer& server) {
    Greet(server);
    server.Say(Answer(rank_, ++answers));
  });
  EvidenceReader reader = Reader(server.port());
  std::ofstream(folder_ + "/r_1")
      << R"({"version":"2.10","pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[0, 1, 2, 3]"}},"entries":[]})";
  const NodeEvidence evidence =
      Await(reader, [](const NodeEvidence& found) { return HasRas(found) && found.sources.size() == 2; });
  EXPECT_TRUE(evidence.ras->has_answered);
  EXPECT_THAT(evidence.ras->hang->origins, ElementsAre(3));
  EXPECT_EQ(evidence.sources[0].path, folder_ + "/r_1");
  EXPECT_EQ(evidence.sources[1].format, readers::SourceFormat::kNcclRas);
  EXPECT_EQ(evidence.sources[1].records, 2u);
  EXPECT_EQ(answers, 2);
}

TEST_F(EvidenceReaderTest, AnswerOfAnotherJobIsNotTaken) {
  RasServer server([&](RasServer& server) {
    Greet(server);
    server.Say(Answer(1'999'999'999, 1));
  });
  EvidenceReader reader = Reader(server.port());
  const NodeEvidence evidence = Await(reader, HasRas);
  EXPECT_FALSE(evidence.ras->has_answered);
  EXPECT_THAT(evidence.ras->notes, ElementsAre(HasSubstr("no process of this node's ranks")));
}

TEST_F(EvidenceReaderTest, CutAnswerIsNotTaken) {
  RasServer server([&](RasServer& server) {
    Greet(server);
    server.Say(Answer(rank_, 1).substr(0, 150));
  });
  EvidenceReader reader = Reader(server.port());
  const NodeEvidence evidence = Await(reader, HasRas);
  EXPECT_FALSE(evidence.ras->has_answered || evidence.ras->hang);
  EXPECT_EQ(evidence.ras->notes.size(), 1u);
}

TEST_F(EvidenceReaderTest, NobodyListensAndNothingIsSaid) {
  int port = 0;
  {
    RasServer server([](RasServer&) {});
    port = server.port();
  }
  EvidenceReader reader = Reader(port);
  const NodeEvidence evidence = Await(reader, HasRas);
  EXPECT_FALSE(evidence.ras->has_answered);
  EXPECT_THAT(evidence.ras->notes, IsEmpty());
  EXPECT_THAT(evidence.sources, IsEmpty());
}

TEST_F(EvidenceReaderTest, RasIsNotAskedWhereItMayNotBe) {
  std::atomic<int> connections{0};
  RasServer server([&](RasServer&) { ++connections; });
  EvidenceReader off = Reader(server.port(), false);
  EXPECT_FALSE(Await(off, HasRas).ras->has_answered);
  EvidenceReader disabled({{"NCCL_RAS_ADDR", absl::StrCat("127.0.0.1:", server.port())}, {"NCCL_RAS_ENABLE", "0"}},
                          true);
  EXPECT_FALSE(Await(disabled, HasRas).ras->has_answered);
  EvidenceReader wrong({{"NCCL_RAS_ADDR", "nowhere"}}, true);
  EXPECT_THAT(Await(wrong, HasRas).ras->notes, ElementsAre(HasSubstr("NCCL_RAS_ADDR")));
  EXPECT_EQ(connections, 0);
}

TEST_F(EvidenceReaderTest, AnotherHangIsLookedAtAnew) {
  RasServer server([&](RasServer&) {});  // closes
  EvidenceReader reader = Reader(server.port());
  EXPECT_EQ(Await(reader, HasRas).ras->notes.size(), 1u);
  wish_.hang = 2;
  EXPECT_EQ(Await(reader, HasRas).ras->notes.size(), 1u);
  wish_.since_ns += 60'000'000'000;
  EXPECT_EQ(Await(reader, HasRas).ras->notes.size(), 1u);
}

}  // namespace
}  // namespace taskd::evidence
