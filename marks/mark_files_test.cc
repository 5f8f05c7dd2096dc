#include "marks/mark_files.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(MarkFilesText, IsOneLineForAllNodes) {
  const MarkFiles data = {"/data/marks", ""};
  const MarkFiles none = {"", "/x/y: Permission denied"};
  EXPECT_EQ(MarkFilesText({}), "");
  EXPECT_EQ(MarkFilesText({{0, data}, {1, data}}), "/data/marks");
  EXPECT_EQ(MarkFilesText({{3, none}}), "none (/x/y: Permission denied)");
  EXPECT_EQ(MarkFilesText({{0, {"/a", "full"}}}), "/a (marks wait in memory: full)");
  EXPECT_EQ(MarkFilesText({{0, data}, {1, data}, {7, none}}),
            "/data/marks on 2 nodes, none (/x/y: Permission denied) on node 7");
  std::vector<std::pair<int, MarkFiles>> many;
  for (int node = 0; node < 10; ++node) many.push_back({node, {std::string(1, static_cast<char>('a' + node)), ""}});
  EXPECT_EQ(MarkFilesText(many), "a on node 0, b on node 1, c on node 2, d on node 3, and others");
}

}  // namespace
}  // namespace taskd
