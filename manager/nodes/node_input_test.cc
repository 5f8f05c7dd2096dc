#include "manager/nodes/node_input.h"

#include <random>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/switch/core.h"
#include "proto/built_size.h"
#include "proto/fold_messages.h"

namespace taskd::manager {
namespace {

constexpr uint64_t kEnd = 1'700'000'000'000'000'000;

StepFold FoldOf(int64_t step) {
  StepFold fold;
  fold.step = step;
  fold.start_ns = kEnd - 900;
  fold.end_ns = kEnd;
  fold.forward_ns = 300;
  fold.works = 3;
  fold.work = 2.5;
  fold.ops.push_back({.group = 1, .op = CommOp::kAllReduce, .peer = -1, .count = 1, .last_end_ns = kEnd});
  fold.samples.push_back({1, CommOp::kSend, 0, kEnd - 31, kEnd - 30});
  return fold;
}

v1::NodeMessage Folds(int steps) {
  v1::NodeMessage message;
  message.mutable_folds()->set_dropped(7);
  v1::RankGroups* groups = message.mutable_folds()->add_groups();
  groups->set_rank(3);
  proto::FillGroup({"g", "tp", {{0, 1, 8}}}, groups->add_groups());
  for (int step = 0; step < steps; ++step) {
    v1::RankStep* filled = message.mutable_folds()->add_steps();
    proto::FillFold(3, FoldOf(step), filled);
    filled->set_number(static_cast<uint64_t>(step) + 100);
  }
  return message;
}

NodeInput Read(const std::string& wire) {
  NodeInput input;
  ReadNodeInput(wire, &input);
  return input;
}
NodeInput Read(const v1::NodeMessage& message) { return Read(message.SerializeAsString()); }

void ExpectRefused(const std::string& wire, absl::StatusCode code) {
  const NodeInput input = Read(wire);
  EXPECT_EQ(input.refusal.code(), code) << input.refusal;
  EXPECT_FALSE(input.folds.has_value());
  EXPECT_FALSE(input.ranks.has_value());
  EXPECT_EQ(input.message.message_case(), v1::NodeMessage::MESSAGE_NOT_SET);
}

void ExpectThree(const NodeInput& input) {
  ASSERT_TRUE(input.refusal.ok()) << input.refusal;
  ASSERT_TRUE(input.folds.has_value());
  EXPECT_EQ(input.message.message_case(), v1::NodeMessage::MESSAGE_NOT_SET);
  EXPECT_EQ(input.folds->proxy_dropped, 7u);
  ASSERT_EQ(input.folds->groups.size(), 1u);
  EXPECT_EQ(input.folds->groups[0].rank, 3);
  EXPECT_THAT(input.folds->groups[0].groups, ::testing::ElementsAre(GroupInfo{"g", "tp", {{0, 1, 8}}}));
  ASSERT_EQ(input.folds->steps.size(), 3u);
  for (int64_t step = 0; step < 3; ++step) {
    const FoldBatch::Step& taken = input.folds->steps[static_cast<size_t>(step)];
    EXPECT_EQ(taken.rank, 3);
    EXPECT_EQ(taken.number, static_cast<uint64_t>(step) + 100);
    EXPECT_EQ(taken.fold, FoldOf(step));
  }
  EXPECT_EQ(input.folds->unreadable, 0u);
  EXPECT_EQ(input.folds->bad_groups, 0u);
}

TEST(NodeInputTest, FoldsComeAsTheyWere) { ExpectThree(Read(Folds(3))); }

// As Protobuf reads it, whoever writes it: in pieces that are merged, and with what is not known yet.
TEST(NodeInputTest, FoldsInPiecesAreMerged) {
  v1::NodeMessage first = Folds(3), second;
  *second.mutable_folds()->add_steps() = first.folds().steps(2);
  first.mutable_folds()->mutable_steps()->RemoveLast();
  const std::string later("\xc0\x3e\x01", 3);  // field 1000
  ExpectThree(Read(first.SerializeAsString() + later + second.SerializeAsString()));
}

TEST(NodeInputTest, OtherMessagesAreProtobufs) {
  v1::NodeMessage message;
  message.mutable_applied()->set_revision(4);
  NodeInput input = Read(message);
  ASSERT_TRUE(input.refusal.ok()) << input.refusal;
  EXPECT_FALSE(input.folds.has_value());
  EXPECT_FALSE(input.ranks.has_value());
  EXPECT_EQ(input.message.applied().revision(), 4u);
  input.Clear();
  EXPECT_EQ(input.message.message_case(), v1::NodeMessage::MESSAGE_NOT_SET);
  // The last one of several counts.
  input = Read(Folds(3).SerializeAsString() + message.SerializeAsString());
  EXPECT_FALSE(input.folds.has_value());
  EXPECT_TRUE(input.message.has_applied());
}

v1::NodeMessage Ranks(int first, int count) {
  v1::NodeMessage message;
  for (int rank = first; rank < first + count; ++rank) message.mutable_ranks()->add_ranks()->set_rank(rank);
  return message;
}

TEST(NodeInputTest, RanksComeAsTheyWere) {
  const std::string two = Ranks(4, 2).SerializeAsString(), folds = Folds(3).SerializeAsString();
  const std::string later("\xc0\x3e\x01", 3);  // field 1000
  for (const auto& [wire, ranks] :
       {std::pair(two, 2u), std::pair(two + Ranks(6, 3).SerializeAsString(), 5u), std::pair(two + later, 2u),
        std::pair(folds + two, 2u), std::pair(std::string("\x12\0", 2), 0u)}) {
    const NodeInput input = Read(wire);
    ASSERT_TRUE(input.refusal.ok()) << input.refusal;
    EXPECT_FALSE(input.folds.has_value());
    EXPECT_EQ(input.message.message_case(), v1::NodeMessage::MESSAGE_NOT_SET);
    ASSERT_TRUE(input.ranks.has_value());
    ASSERT_EQ(input.ranks->size(), ranks);
    for (size_t i = 0; i < ranks; ++i) EXPECT_EQ((*input.ranks)[i].rank, 4 + static_cast<int>(i));
  }
  ExpectThree(Read(two + folds));
}

TEST(NodeInputTest, MoreRanksThanANodeHasAreRefused) {
  EXPECT_EQ(Read(Ranks(0, kMaxRanksPerNode)).ranks->size(), size_t{kMaxRanksPerNode});
  ExpectRefused(Ranks(0, kMaxRanksPerNode + 1).SerializeAsString(), absl::StatusCode::kInvalidArgument);
}

TEST(NodeInputTest, BrokenRanksAreRefused) {
  v1::NodeMessage message = Ranks(4, 2);
  message.mutable_ranks()->mutable_ranks(1)->set_reason("why");
  const std::string whole = message.SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    ExpectRefused(whole.substr(0, size), absl::StatusCode::kInvalidArgument);
  }
  std::string no_utf8 = whole;
  no_utf8[no_utf8.find("why")] = '\xff';
  ExpectRefused(no_utf8, absl::StatusCode::kInvalidArgument);
}

TEST(NodeInputTest, WhatCannotBeReadIsCounted) {
  v1::NodeMessage message = Folds(3);
  message.mutable_folds()->mutable_steps(1)->set_step(-1);
  message.mutable_folds()->mutable_groups(0)->mutable_groups(0)->add_runs(1);
  const NodeInput input = Read(message);
  ASSERT_TRUE(input.folds.has_value()) << input.refusal;
  EXPECT_EQ(input.folds->unreadable, 1u);
  ASSERT_EQ(input.folds->steps.size(), 2u);
  EXPECT_EQ(input.folds->steps[1].number, 102u);
  EXPECT_EQ(input.folds->bad_groups, 1u);
  EXPECT_THAT(input.folds->groups[0].groups, ::testing::ElementsAre(GroupInfo{"g", "tp", {}}));
}

TEST(NodeInputTest, GroupsBeyondTheLimitAreCounted) {
  v1::NodeMessage message;
  v1::RankGroups* groups = message.mutable_folds()->add_groups();
  for (size_t i = 0; i < DiagnosisFeed::kMaxGroups + 5; ++i) groups->add_groups()->set_name("g");
  for (int i = 0; i < kMaxRanksPerNode + 5; ++i) message.mutable_folds()->add_groups();
  const NodeInput input = Read(message);
  ASSERT_TRUE(input.folds.has_value()) << input.refusal;
  EXPECT_EQ(input.folds->groups.size(), size_t{kMaxRanksPerNode});
  EXPECT_EQ(input.folds->groups[0].groups.size(), DiagnosisFeed::kMaxGroups);
  EXPECT_EQ(input.folds->bad_groups, 5u);
}

// Two bytes can be a step of hundreds.
TEST(NodeInputTest, WhatWouldTakeTooMuchMemoryIsRefused) {
  v1::NodeMessage few, many;
  for (int i = 0; i < 1000; ++i) few.mutable_folds()->add_steps();
  EXPECT_EQ(Read(few).folds->steps.size(), 1000u);
  v1::RankStep full;
  for (size_t i = 0; i < StepFold::kMaxOps * 15; ++i) full.add_ops(0);
  const size_t enough = proto::kMaxBuiltBytes / (StepFold::kMaxOps * sizeof(OpFold)) + 1;
  for (size_t i = 0; i < enough; ++i) *many.mutable_folds()->add_steps() = full;
  ExpectRefused(many.SerializeAsString(), absl::StatusCode::kResourceExhausted);
  v1::NodeMessage empty;
  for (int i = 0; i < 200'000; ++i) empty.mutable_folds()->add_steps();
  ExpectRefused(empty.SerializeAsString(), absl::StatusCode::kResourceExhausted);
  v1::NodeMessage ranks;
  for (int i = 0; i < 1'000'000; ++i) ranks.mutable_folds()->add_groups();
  ExpectRefused(ranks.SerializeAsString(), absl::StatusCode::kResourceExhausted);
  v1::NodeMessage groups;
  for (int rank = 0; rank < 2000; ++rank) {
    v1::RankGroups* of_rank = groups.mutable_folds()->add_groups();
    for (size_t i = 0; i < DiagnosisFeed::kMaxGroups; ++i) of_rank->add_groups();
  }
  ExpectRefused(groups.SerializeAsString(), absl::StatusCode::kResourceExhausted);
}

TEST(NodeInputTest, ABrokenWireIsRefused) {
  const std::string whole = Folds(3).SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    ExpectRefused(whole.substr(0, size), absl::StatusCode::kInvalidArgument);
  }
  // Of a step within: the lengths around it stay sound.
  const auto with_step = [](const std::string& step) {
    const std::string set = "\x12" + std::string(1, static_cast<char>(step.size())) + step;
    return "\x2a" + std::string(1, static_cast<char>(set.size())) + set;
  };
  EXPECT_EQ(Read(with_step(std::string("\x08\x05", 2))).folds->steps.at(0).rank, 5);
  for (const std::string& step : {
           std::string("\x08", 1),                                               // no number
           std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12),  // one that is too long
           std::string("\x0b\x0c", 2),                                           // a group
           std::string("\x00\x01", 2),                                           // field 0
           std::string("\x0f\x01", 2),                                           // no such type
           std::string("\xca\x01\x01\x80", 4),                                   // packed, and the last number goes on
           std::string("\xca\x01\x05\x01", 4),                                   // longer than the step
           std::string("\xe1\x01\x01", 3),                                       // half a double
       }) {
    ExpectRefused(with_step(step), absl::StatusCode::kInvalidArgument);
  }
}

// Numbers are Protobuf's own reading of the same bytes, in any order, more than once, and not packed.
TEST(NodeInputTest, ReadsNumbersAsProtobufDoes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string step;
    const auto varint = [&step](uint64_t number) {
      for (; number >= 0x80; number >>= 7) step += static_cast<char>(number | 0x80);
      step += static_cast<char>(number);
    };
    for (int i = 0; i < 40; ++i) {
      const uint64_t field = 1 + random() % 33;
      if (field >= v1::RankStep::kOpsFieldNumber && field <= v1::RankStep::kSamplesFieldNumber) continue;
      if (field == v1::RankStep::kWorkFieldNumber) continue;
      varint(field << 3);
      varint(random() >> random() % 64);
    }
    for (const auto& [field, number] : {std::pair(v1::RankStep::kStepFieldNumber, uint64_t{5}),
                                        std::pair(v1::RankStep::kEndNsFieldNumber, UINT64_MAX)}) {
      varint(static_cast<uint64_t>(field) << 3);
      varint(number);
    }
    for (uint64_t i = 0; i < 15; ++i) {
      varint(uint64_t{v1::RankStep::kOpsFieldNumber} << 3);
      varint(i == 1 ? 2 : 2 * (random() % 60));
    }
    v1::RankStep parsed;
    ASSERT_TRUE(parsed.ParseFromString(step));
    const absl::StatusOr<proto::RankFold> read = proto::ReadFold(step);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->rank, parsed.rank());
    EXPECT_EQ(read->number, parsed.number());
    EXPECT_EQ(read->fold.process_id, parsed.process_id());
    EXPECT_EQ(read->fold.host_only, parsed.host_only());
    v1::RankStep again;
    proto::FillFold(read->rank, read->fold, &again);
    again.set_number(read->number);
    parsed.DiscardUnknownFields();
    EXPECT_EQ(again.SerializeAsString(), parsed.SerializeAsString());
  }
}

}  // namespace
}  // namespace taskd::manager
