#include "agent/evidence/node_evidence.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::evidence {
namespace {

using diagnosis::HangOp;
using diagnosis::HangRank;
using diagnosis::OpState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks 2·node and the next one of four; rank 3 has not entered the second all_reduce.
NodeEvidence OfNode(int node) {
  NodeEvidence evidence;
  evidence.first_rank = 2 * node;
  evidence.facts.groups = {{.name = "default_pg,0", .members = {0, 1, 2, 3}}};
  evidence.facts.calls = {{.name = "all_reduce", .type = "Float", .amount = "8", .sizes = "8", .frames = "f (a.py:1)"}};
  for (int rank : {2 * node, 2 * node + 1}) {
    HangRank& known = evidence.facts.ranks[rank];
    known.ops.push_back(
        {.group = 0, .call = 0, .number = 1, .order = 0, .created_ns = 4, .state = OpState::kCompleted});
    if (rank != 3) {
      known.ops.push_back(
          {.group = 0, .call = 0, .number = 2, .order = 1, .created_ns = 5, .state = OpState::kStarted});
    }
    evidence.sources.push_back({.path = "/tmp/r_" + std::to_string(rank),
                                .format = readers::SourceFormat::kFlightRecorder,
                                .rank = rank,
                                .records = 2,
                                .note = ""});
  }
  return evidence;
}

NodeEvidence Sent(const NodeEvidence& evidence) {
  absl::StatusOr<NodeEvidence> received = DecodeEvidence(EncodeEvidence(evidence));
  EXPECT_TRUE(received.ok()) << received.status();
  return *std::move(received);
}

TEST(NodeEvidenceText, ArrivesAsItWasSent) {
  NodeEvidence evidence = OfNode(1);
  evidence.facts.groups.push_back({.name = "odd", .members = {7, 3, 4, 5, 9}});
  evidence.facts.ranks[2].is_cut = evidence.facts.ranks[3].is_partial = true;
  evidence.facts.ranks[3].ops.push_back(
      {.group = 1, .call = 0, .number = 0, .order = 7, .peer = HangOp::kAnyPeer, .sends = true});
  evidence.ras.emplace();
  evidence.ras->has_answered = true;
  evidence.ras->notes = {"a note"};
  diagnosis::Hang& hang = evidence.ras->hang.emplace();
  hang.origins = {3};
  hang.kind = "missing";
  hang.operation = "AllReduce";
  hang.waiting = {0, 1, 2};
  hang.text = "rank 3 \xff";
  const NodeEvidence received = Sent(evidence);
  EXPECT_EQ(received.first_rank, 2);
  EXPECT_EQ(received.sources, evidence.sources);
  EXPECT_THAT(received.facts.groups[1].members, ElementsAre(7, 3, 4, 5, 9));
  EXPECT_EQ(received.facts.calls[0].frames, "f (a.py:1)");
  EXPECT_TRUE(received.facts.ranks.at(2).is_cut && received.facts.ranks.at(3).is_partial);
  const HangOp& op = received.facts.ranks.at(3).ops.back();
  EXPECT_EQ(std::tuple(op.group, op.order, op.peer, op.sends, op.state),
            std::tuple(1u, 7u, HangOp::kAnyPeer, true, OpState::kScheduled));
  EXPECT_TRUE(received.ras->has_answered);
  EXPECT_THAT(received.ras->hang->origins, ElementsAre(3));
  EXPECT_THAT(received.ras->hang->waiting, ElementsAre(0, 1, 2));
  EXPECT_EQ(received.ras->hang->operation, "AllReduce");
  EXPECT_THAT(received.ras->hang->text, HasSubstr("rank 3"));
}

TEST(NodeEvidenceText, WhatIsTooLargeLosesFramesThenFacts) {
  NodeEvidence evidence = OfNode(0);
  evidence.facts.calls[0].frames = std::string(5000, 'f');
  NodeEvidence received = *DecodeEvidence(EncodeEvidence(evidence, 4000));
  EXPECT_EQ(received.facts.calls[0].frames, "");
  EXPECT_EQ(received.facts.ranks.size(), 2u);
  received = *DecodeEvidence(EncodeEvidence(evidence, 10));
  EXPECT_THAT(received.facts.ranks, IsEmpty());
  EXPECT_THAT(received.sources[0].note, HasSubstr("too much to send"));
}

TEST(NodeEvidenceText, WhatMakesNoSenseIsRefused) {
  for (
      const char* text : {
          "",
          "[]",
          "{",
          R"({"first_rank":-1})",
          R"({"first_rank":131072})",
          R"({"facts":{"groups":[["g",[5,4]]]}})",
          R"({"facts":{"groups":[["g",[0,200000]]]}})",
          // A group that is not there.
          R"({"facts":{"groups":[["g",[0,1]]],"calls":[["c"]],"ranks":[{"rank":0,"ops":[[1,0,1,0,0,-1,0,1]]}]}})",
          R"({"facts":{"groups":[["g",[0,1]]],"calls":[["c"]],"ranks":[{"rank":0,"ops":[[0,1,1,0,0,-1,0,1]]}]}})",
          R"({"facts":{"groups":[["g",[0,1]]],"calls":[["c"]],"ranks":[{"rank":0,"ops":[[0,0,1]]}]}})",
          R"({"facts":{"groups":[["g",[0,1]]],"calls":[["c"]],"ranks":[{"rank":0,"ops":[[0,0,1,0,0,-1,0,3]]}]}})",
          R"({"facts":{"groups":[["g",[0,1]]],"calls":[["c"]],"ranks":[{"rank":0,"ops":[[0,0,1,5,0,-1,0,1],[0,0,1,4,0,-1,0,1]]}]}})",
          R"({"facts":{"ranks":[{"rank":1},{"rank":1}]}})",
          R"({"ras":{"hang":{"origins":[131072]}}})",
      }) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeEvidence(text).status())) << text;
  }
  // Unknown and missing fields are nothing.
  EXPECT_TRUE(DecodeEvidence(R"({"more":[1]})").ok());
}

TEST(NodeEvidenceText, DeepAndLongTextIsNotBuilt) {
  EXPECT_FALSE(DecodeEvidence(R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}").ok());
  EXPECT_FALSE(DecodeEvidence(R"({"a":")" + std::string(size_t{9} << 20, 'x') + "\"}").ok());
}

TEST(EvidenceBookTest, NodesTogetherSayWhoHasNotCome) {
  EvidenceBook book;
  book.Add(Sent(OfNode(0)));
  Finding finding = book.Judge();
  ASSERT_TRUE(finding.hang.has_value());
  EXPECT_THAT(finding.hang->origins, IsEmpty()) << "of ranks 2 and 3 nothing is known yet";
  book.Add(Sent(OfNode(1)));
  finding = book.Judge();
  EXPECT_THAT(finding.hang->origins, ElementsAre(3));
  EXPECT_THAT(finding.hang->waiting, ElementsAre(0, 1, 2));
  EXPECT_EQ(finding.hang->group, "default_pg,0");
  EXPECT_EQ(finding.sources.size(), 4u);
  EXPECT_THAT(TextOf(finding), HasSubstr("rank 3 never entered all_reduce 2 of default_pg,0"));
  EXPECT_THAT(TextOf(finding), HasSubstr("/tmp/r_* of ranks 0-3"));
}

TEST(EvidenceBookTest, WhatANodeSendsReplacesWhatItSentBefore) {
  EvidenceBook book;
  book.Add(Sent(OfNode(0)));
  NodeEvidence changed = OfNode(1);
  book.Add(Sent(changed));
  changed.facts.ranks.erase(3);
  changed.sources.pop_back();
  book.Add(Sent(changed));
  const Finding finding = book.Judge();
  EXPECT_THAT(finding.hang->origins, IsEmpty());
  EXPECT_EQ(finding.sources.size(), 3u);
}

TEST(EvidenceBookTest, RasSaysItWhereDumpsDoNot) {
  NodeEvidence ras;
  ras.first_rank = 0;
  ras.sources.push_back(
      {.path = "localhost:28028", .format = readers::SourceFormat::kNcclRas, .rank = -1, .records = 2, .note = ""});
  ras.ras.emplace();
  EvidenceBook book;
  book.Add(Sent(ras));
  EXPECT_FALSE(book.Judge().hang.has_value());
  ras.ras->has_answered = true;
  ras.ras->hang.emplace();
  ras.ras->hang->origins = {3};
  ras.ras->hang->text = "rank 3 has not launched AllReduce";
  book.Add(Sent(ras));
  Finding finding = book.Judge();
  EXPECT_THAT(finding.hang->origins, ElementsAre(3));
  EXPECT_EQ(TextOf(finding), "rank 3 has not launched AllReduce (NCCL RAS at localhost:28028)");
  NodeEvidence second;
  second.first_rank = 2;
  second.ras.emplace();  // nobody listens there
  book.Add(Sent(second));
  EXPECT_TRUE(book.Judge().hang.has_value());

  for (int node : {0, 1}) book.Add(Sent(OfNode(node)));
  finding = book.Judge();
  EXPECT_EQ(finding.hang->group, "default_pg,0");
  EXPECT_THAT(finding.notes, ElementsAre("rank 3 has not launched AllReduce"));
}

TEST(EvidenceBookTest, ManyFilesAreCounted) {
  NodeEvidence evidence;
  for (int rank = 0; rank < 300; ++rank) {
    evidence.sources.push_back({.path = "/tmp/r_" + std::to_string(rank),
                                .format = readers::SourceFormat::kFlightRecorder,
                                .rank = rank,
                                .records = 1,
                                .note = ""});
  }
  EvidenceBook book;
  book.Add(Sent(evidence));
  const Finding finding = book.Judge();
  EXPECT_EQ(finding.sources.size(), Finding::kMaxSources);
  EXPECT_EQ(finding.more_sources, 44u);
}

}  // namespace
}  // namespace taskd::evidence
