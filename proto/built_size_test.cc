#include "proto/built_size.h"

#include <string>

#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "taskd/v1/job_link.pb.h"
#include "taskd/v1/node.pb.h"
#include "taskd/v1/supervision.pb.h"

namespace taskd::proto {
namespace {

absl::Status Check(const google::protobuf::Descriptor* type, const std::string& wire, size_t max = kMaxBuiltBytes) {
  google::protobuf::io::ArrayInputStream in(wire.data(), static_cast<int>(wire.size()));
  return CheckBuiltSize(*type, &in, max);
}

std::string Repeat(const std::string& what, size_t bytes) {
  std::string wire;
  while (wire.size() + what.size() <= bytes) wire += what;
  return wire;
}

// Field `number`, length-delimited.
std::string Part(int number, const std::string& content) {
  std::string wire(1, static_cast<char>(number << 3 | 2));
  size_t size = content.size();
  for (; size >= 0x80; size >>= 7) wire.push_back(static_cast<char>(size | 0x80));
  wire.push_back(static_cast<char>(size));
  return wire + content;
}

constexpr size_t kMost = 4 * 1024 * 1024 - 64;

TEST(BuiltSizeTest, WhatIsSentIsTaken) {
  v1::NodeMessage message;
  for (int i = 0; i < 20000; ++i) {
    v1::RankStep* step = message.mutable_folds()->add_steps();
    step->set_rank(i);
    step->set_step(1'000'000 + i);
    step->set_end_ns(1'790'000'000'000'000'000);
    step->set_length_ns(100'000'000);
    for (int k = 0; k < 15; ++k) step->add_ops(-3'000'000);
    for (int k = 0; k < 10; ++k) step->add_samples(77);
  }
  const std::string wire = message.SerializeAsString();
  ASSERT_GT(wire.size(), kMost / 2);
  EXPECT_TRUE(Check(v1::NodeMessage::descriptor(), wire).ok());
  v1::NodeMessage ranks;
  for (int i = 0; i < 4096; ++i) {
    v1::RankStatus* rank = ranks.mutable_ranks()->add_ranks();
    rank->set_reason(std::string(100, 'x'));
    rank->mutable_marks()->set_step(1);
    rank->mutable_applied()->set_step(true);
  }
  EXPECT_TRUE(Check(v1::NodeMessage::descriptor(), ranks.SerializeAsString()).ok());
  EXPECT_TRUE(Check(v1::NodeMessage::descriptor(), "").ok());
}

TEST(BuiltSizeTest, NothingMayBecomeManyTimesItsSize) {
  const std::string empty_step = Part(2, "");
  const std::string empty_group = Part(1, Part(2, ""));
  const std::string empty = Part(1, "");
  for (const auto& [type, wire] : {
           std::pair(v1::NodeMessage::descriptor(), Part(5, Repeat(empty_step, kMost))),
           std::pair(v1::NodeMessage::descriptor(), Part(5, Repeat(empty_group, kMost))),
           std::pair(v1::NodeMessage::descriptor(), Part(5, Part(1, Repeat(Part(2, ""), kMost)))),
           std::pair(v1::NodeMessage::descriptor(), Part(2, Repeat(empty, kMost))),
           std::pair(v1::NodeMessage::descriptor(), Part(3, Repeat(Part(2, ""), kMost))),
           std::pair(v1::ReportEventsRequest::descriptor(), Repeat(Part(2, ""), kMost)),
           std::pair(v1::NodeReport::descriptor(), Part(1, Repeat(Part(5, ""), kMost))),
           // Fields that nobody knows are kept too.
           std::pair(v1::WatchRequest::descriptor(), Repeat(Part(14, ""), kMost)),
           std::pair(v1::WatchRequest::descriptor(), Repeat(std::string("\x70\x01", 2), kMost)),
       }) {
    EXPECT_TRUE(absl::IsResourceExhausted(Check(type, wire))) << Check(type, wire);
  }
}

TEST(BuiltSizeTest, WhatIsBrokenIsSaidToBeBroken) {
  for (const std::string& wire :
       {std::string("\xff"), std::string("\x2a\x05\x12"), std::string("\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        std::string("\x0b\x0c"), Part(5, Part(2, std::string("\xca\x01\x03\x80", 4)))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Check(v1::NodeMessage::descriptor(), wire)));
    EXPECT_FALSE(v1::NodeMessage().ParseFromString(wire) && wire != "\x0b\x0c");
  }
}

}  // namespace
}  // namespace taskd::proto
