#include "common/hostlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<std::string>> TryExpand(std::string_view list) {
  std::vector<std::string> hosts;
  absl::Status status = ExpandHostlist(list, 65536, hosts);
  if (!status.ok()) return status;
  return hosts;
}

std::vector<std::string> Expand(std::string_view list) {
  absl::StatusOr<std::vector<std::string>> hosts = TryExpand(list);
  EXPECT_TRUE(hosts.ok()) << list << ": " << hosts.status();
  return hosts.ok() ? *hosts : std::vector<std::string>();
}

TEST(HostlistTest, NamesAndRanges) {
  EXPECT_THAT(Expand("n1"), ElementsAre("n1"));
  EXPECT_THAT(Expand("gpu[001-003,7],login2-ib0"), ElementsAre("gpu001", "gpu002", "gpu003", "gpu7", "login2-ib0"));
  EXPECT_THAT(Expand("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(Expand("n[08-10]-ib0"), ElementsAre("n08-ib0", "n09-ib0", "n10-ib0"));
  EXPECT_THAT(Expand("r[1-2]n[0-1]"), ElementsAre("r1n0", "r1n1", "r2n0", "r2n1"));
  EXPECT_THAT(Expand("[1-2]"), ElementsAre("1", "2"));
  EXPECT_THAT(Expand("b,a"), ElementsAre("b", "a"));
}

TEST(HostlistTest, TenThousandNodes) {
  const std::vector<std::string> hosts = Expand("node[00001-10000]");
  ASSERT_EQ(hosts.size(), 10000u);
  EXPECT_EQ(hosts.front(), "node00001");
  EXPECT_EQ(hosts.back(), "node10000");
}

TEST(HostlistTest, WhatIsNoListIsRefused) {
  for (const char* list : {"", ",", "n1,", "n[", "n]", "n[1", "n[1-]", "n[-1]", "n[a]", "n[2-1]", "n[[1]]", "n[1]]",
                           "n[1-99999999999999999999]"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(TryExpand(list).status())) << list;
  }
  for (const char* list : {"n[1-1000000]", "r[1-1000]n[1-1000]"}) {
    EXPECT_TRUE(absl::IsResourceExhausted(TryExpand(list).status())) << list;
  }
  EXPECT_THAT(TryExpand("n[5-4]").status().message(), HasSubstr("\"5-4\""));
  EXPECT_FALSE(TryExpand(std::string(300, 'x')).ok());
}

}  // namespace
}  // namespace taskd
