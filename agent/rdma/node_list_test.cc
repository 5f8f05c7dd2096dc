#include "agent/rdma/node_list.h"

#include <gtest/gtest.h>

namespace taskd::rdma {
namespace {

TEST(ParseNodeList, TakesNamesAndAddresses) {
  const auto nodes = ParseNodeList("job-launcher.svc.cluster.local:8,10.0.0.2:0,[fe80::1]:16");
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  ASSERT_EQ(nodes->size(), 3u);
  EXPECT_EQ((*nodes)[0].host, "job-launcher.svc.cluster.local");
  EXPECT_EQ((*nodes)[0].cards, 8);
  EXPECT_EQ((*nodes)[1].cards, 0);
  EXPECT_EQ((*nodes)[2].host, "fe80::1");
  EXPECT_EQ((*nodes)[2].cards, 16);
}

TEST(ParseNodeList, NamesTheEntryAndTheRule) {
  const struct {
    const char *value, *entry, *why;
  } cases[] = {{"", "", "empty"},
               {"a", "'a'", "host:cards"},
               {"a:1,b", "entry 2, 'b'", "host:cards"},
               {"a:1,", "entry 2, ''", "host:cards"},
               {",a:1", "entry 1, ''", "host:cards"},
               {"[::1]", "'[::1]'", "host:cards"},
               {":8", "':8'", "host is empty"},
               {"a:", "'a:'", "integer"},
               {"a:x", "'a:x'", "integer"},
               {"a:-1", "'a:-1'", "integer"},
               {"a:-0", "'a:-0'", "integer"},
               {"a:+1", "'a:+1'", "integer"},
               {"a:1.5", "'a:1.5'", "integer"},
               {"a: 1", "'a: 1'", "integer"},
               {"a:99999999999", "'a:99999999999'", "integer"},
               {"a:1, b:1", "entry 2", "blank"},
               {"-ox:1", "'-ox:1'", "option"},
               {"a:1,b:1,a:2", "entry 3, 'a:2'", "twice"},
               {"[::1]:8,[0::1]:8", "entry 2", "twice"},
               {"::1:8", "'::1:8'", "brackets"},
               {"fe80::1", "'fe80::1'", "brackets"},
               {"fe80:0:0:0:0:0:0:1:8", "entry 1", "brackets"},
               {"[a]:8", "'[a]:8'", "brackets"},
               {"[]:8", "'[]:8'", "brackets"},
               {"[:8", "'[:8'", "brackets"}};
  for (const auto& one : cases) {
    const auto nodes = ParseNodeList(one.value);
    ASSERT_TRUE(absl::IsInvalidArgument(nodes.status())) << one.value;
    const std::string text(nodes.status().message());
    EXPECT_EQ(text.find("NODE_LIST"), 0u) << text;
    EXPECT_NE(text.find(one.entry), text.npos) << text;
    EXPECT_NE(text.find(one.why), text.npos) << text;
  }
}

}  // namespace
}  // namespace taskd::rdma
