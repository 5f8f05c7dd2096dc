#include "marks/comm_name.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

CommName Parse(std::string_view name) {
  static std::string storage;
  CommName out;
  EXPECT_TRUE(ParseCommName(name, storage, out)) << name;
  return out;
}

// torch_npu sends escaped quotes; mark files have plain ones.
TEST(ParseCommName, ReadsEscapedAndPlainQuotes) {
  for (
      std::string_view name :
      {R"({\"count\": \"1024\",\"streamId\": \"7\",\"dataType\": \"bfp16\",\"groupName\": \"10.0.0.1%eth0_60000_0\",\"opName\": \"HcclAllreduce\"})",
       R"({"count": "1024","streamId": "7","dataType": "bfp16","groupName": "10.0.0.1%eth0_60000_0","opName": "HcclAllreduce"})",
       R"( { "opName":"HcclAllreduce" , "groupName" : "10.0.0.1%eth0_60000_0", "dataType": "bfp16", "count": 1024, "new": true } )"}) {
    const CommName out = Parse(name);
    EXPECT_EQ(out.group, "10.0.0.1%eth0_60000_0");
    EXPECT_EQ(out.op, CommOp::kAllReduce);
    EXPECT_EQ(out.bytes, 2048u);
    EXPECT_EQ(out.peer, -1);
  }
}

TEST(ParseCommName, UnescapesTheGroup) {
  EXPECT_EQ(Parse(R"({"groupName": "a\"b\\c\u00e4","opName": "HcclSend"})").group, "a\"b\\cä");
  EXPECT_EQ(Parse(R"({\"groupName\": \"a\\\"b\\\\c\",\"opName\": \"HcclSend\"})").group, R"(a"b\c)");
  EXPECT_EQ(Parse(R"({"groupName": "","opName": "HcclSend"})").group, "");
}

TEST(ParseCommName, KnowsTheOperations) {
  const std::pair<const char*, CommOp> names[] = {
      {"HcclAllreduce", CommOp::kAllReduce},
      {"HcclAllGather", CommOp::kAllGather},
      {"HcclAllGatherV", CommOp::kAllGather},
      {"HcclBroadcast", CommOp::kBroadcast},
      {"HcclReduce", CommOp::kReduce},
      {"HcclReduceScatter", CommOp::kReduceScatter},
      {"HcclReduceScatterV", CommOp::kReduceScatter},
      {"HcclAlltoAll", CommOp::kAllToAll},
      {"HcclAlltoAllV", CommOp::kAllToAll},
      {"HcclSend", CommOp::kSend},
      {"HcclRecv", CommOp::kRecv},
      {"HcclReceive", CommOp::kRecv},
      {"HcclBatchSendRecv", CommOp::kSendRecv},
      {"HcclScatter", CommOp::kScatter},
      {"HcclGather", CommOp::kGather},
      {"HcclBarrier", CommOp::kBarrier},
      {"all_reduce", CommOp::kAllReduce},
      {"ncclAllReduce", CommOp::kAllReduce},
      {"HcclNew", CommOp::kOther},
      {"", CommOp::kOther},
  };
  for (const auto& [name, op] : names) {
    EXPECT_EQ(Parse(std::string(R"({"groupName": "g","opName": ")") + name + "\"}").op, op) << name;
  }
}

TEST(ParseCommName, ReadsPeersOfPointToPoint) {
  auto peer = [](const std::string& op, const std::string& more) {
    return Parse(R"({"groupName": "g","opName": ")" + op + '"' + more + "}").peer;
  };
  const std::string both = R"(,"srcRank": "3","destRank": "5")";
  EXPECT_EQ(peer("HcclSend", both), 5);
  EXPECT_EQ(peer("HcclRecv", both), 3);
  EXPECT_EQ(peer("HcclBatchSendRecv", both), 5);
  EXPECT_EQ(peer("HcclBatchSendRecv", R"(,"srcRank": "3")"), 3);
  EXPECT_EQ(peer("HcclBroadcast", both), -1);
  EXPECT_EQ(peer("HcclRecv", R"(,"srcRank": "-1")"), -1);
  EXPECT_EQ(peer("HcclRecv", R"(,"srcRank": "99999999999")"), -1);
  EXPECT_EQ(peer("HcclRecv", R"(,"srcRank": 3)"), 3);
}

TEST(ParseCommName, BytesAreUnknownUnlessBothAreKnown) {
  auto bytes = [](const std::string& count, const std::string& type) {
    return Parse(R"({"groupName": "g","opName": "HcclSend","count": ")" + count + R"(","dataType": ")" + type + "\"}")
        .bytes;
  };
  EXPECT_EQ(bytes("10", "fp32"), 40u);
  EXPECT_EQ(bytes("10", "int8"), 10u);
  EXPECT_EQ(bytes("10", "int64"), 80u);
  EXPECT_EQ(bytes("10", "na"), 0u);
  EXPECT_EQ(bytes("ten", "fp32"), 0u);
  EXPECT_EQ(bytes("-1", "fp32"), 0u);
  EXPECT_EQ(bytes("9223372036854775808", "bfp16"), 0u);  // over 64 bits
}

TEST(ParseCommName, ACutNameCountsAsFarAsItGoes) {
  EXPECT_EQ(Parse(R"({\"groupName\": \"g\",\"opName\": \"HcclSend\",\"destRank\": \"1)").peer, -1);
  EXPECT_EQ(Parse(R"({"groupName": "g","opName": "HcclSend","destRank": "12",)").peer, 12);
}

TEST(ParseCommName, RefusesOtherNames) {
  std::string storage;
  CommName out;
  for (std::string_view name :
       {"", "{", "{}", "step 1", "plain", R"({"opName": "HcclSend"})", R"({"groupName": "g"})", R"(["groupName", "g"])",
        R"({"groupName": "g","opName": "Hccl)", R"({"groupName" "g" "opName" "HcclSend"})", R"({\"groupName\": \"g\)",
        "{\\", "{\"\\"}) {
    EXPECT_FALSE(ParseCommName(name, storage, out)) << name;
  }
}

}  // namespace
}  // namespace taskd
