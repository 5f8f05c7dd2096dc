#include "marks/fold_groups.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

// The members are not adjacent, so each of them needs a run of its own.
GroupInfo Scattered(const std::string& name, size_t runs) {
  GroupInfo group = {name, "dp", {}};
  for (size_t i = 0; i < runs; ++i) group.members.push_back({static_cast<int>(i), 1, 1});
  return group;
}

size_t MemberBytes(const FoldGroups& groups) {
  size_t bytes = 0;
  for (const GroupInfo& group : groups.all()) bytes += group.members.size() * sizeof(MemberRun);
  return bytes;
}

TEST(FoldGroups, AFileThatChangesForEverTakesNoMore) {
  FoldGroups groups;
  const size_t most = FoldGroups::kMaxMemberBytes / sizeof(MemberRun);
  for (int i = 0; i < 200; ++i) {
    groups.Announce({Scattered("g" + std::to_string(i), most / 4)});
    ASSERT_EQ(groups.IndexOf("g" + std::to_string(i)), static_cast<uint32_t>(i));
  }
  EXPECT_EQ(groups.all()[3].members.size(), most / 4);
  EXPECT_THAT(groups.all()[199].members, ::testing::IsEmpty()) << "its name is known";
  EXPECT_LE(MemberBytes(groups), FoldGroups::kMaxMemberBytes);
  // Announced groups that no mark has named share this limit. Announcing a group again replaces its entry.
  FoldGroups others;
  for (int i = 0; i < 200; ++i) others.Announce({Scattered("g", most)});
  ASSERT_EQ(others.IndexOf("g"), 0u);
  EXPECT_EQ(others.all()[0].members.size(), most);
  others.Announce({Scattered("g", most), Scattered("more", 1)});
  ASSERT_EQ(others.IndexOf("more"), 1u);
  EXPECT_THAT(others.all()[1].members, ::testing::IsEmpty());
}

}  // namespace
}  // namespace taskd
