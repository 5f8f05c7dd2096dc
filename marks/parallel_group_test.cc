#include "marks/parallel_group.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(ParallelGroup, ReadsTheContractsForm) {
  absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(R"({
    "group_name_12": {
        "group_name": "tp",
        "group_rank": 1,
        "global_ranks": [
            0,
            1
        ]
    },
    "b": {"global_ranks": [3, 11, 19], "group_name": "default_group", "group_rank": 0}
})");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(*groups, ::testing::ElementsAre(GroupInfo{"group_name_12", "tp", {{0, 1, 2}}},
                                              GroupInfo{"b", "default_group", {{3, 8, 3}}}));
}

TEST(ParallelGroup, LeavesOutWhatItDoesNotKnow) {
  absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(
      R"({"a": {"more": {"group_name": "x", "global_ranks": [7]}, "global_ranks": [1, -2, 3.5, "4", [5], {"global_ranks": 6},
      99999999999, 8], "ranks": [9], "group_name": 17, "none": null}, "b": {}})");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(*groups, ::testing::ElementsAre(GroupInfo{"a", "", {{1, 7, 2}}}, GroupInfo{"b", "", {}}));
  EXPECT_THAT(*ParseParallelGroups("{}"), ::testing::IsEmpty());
}

TEST(ParallelGroup, RefusesAnythingElse) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("7"), std::string("null"), std::string(R"({"a": 1})"),
        std::string(R"({"a": []})"), std::string(R"({"a": {"global_ranks": [1, 2)"), std::string(R"({"a": {}} more)"),
        R"({"a": {"x": )" + std::string(100'000, '['), "{\"" + std::string(600, 'n') + "\": {}}"}) {
    absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(text);
    EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
  }
}

TEST(ParallelGroup, AListOfManyMembersIsOneRun) {
  std::string text = R"({"world": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0)";
  for (int rank = 1; rank < 16384; ++rank) text += "," + std::to_string(rank);
  absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(text + "]}}");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT((*groups)[0].members, ::testing::ElementsAre(MemberRun{0, 1, 16384}));
}

// Invalid JSON must be refused, and each number must keep its value.
TEST(ParallelGroup, IsReadStrictly) {
  for (const char* text : {
           R"({"a": {"global_ranks": [01]}})",
           R"({"a": {"global_ranks": [1,]}})",
           R"({"a": {"global_ranks": [1 2]}})",
           R"({"a": {"global_ranks": [,1]}})",
           R"({"a": {"global_ranks": [1]},})",
           R"({"a": {"global_ranks": [1],}})",
           R"({"a" {"global_ranks": [1]}})",
           R"({"a": {"global_ranks": [1]}}})",
           "{\"a\": {\"group_name\": \"t\tp\"}}",
       }) {
    EXPECT_EQ(ParseParallelGroups(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(
      R"({"a": {"global_ranks": [5, 2147483647, 2147483648, 99999999999, 1e1, 6]}, "é": {"group_name": "t\u0070"}})");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(ExpandMembers((*groups)[0].members, 10), ::testing::ElementsAre(5, 2147483647, 6));
  EXPECT_EQ((*groups)[1].name, "é");
  EXPECT_EQ((*groups)[1].label, "tp");
}

TEST(ParallelGroup, SaysWhatIsWrongAndWhere) {
  const auto error_of = [](const std::string& text) {
    return std::string(ParseParallelGroups(text).status().message());
  };
  EXPECT_EQ(error_of("[]"), "parallel_group.json: byte 0: an object is expected here");
  EXPECT_EQ(error_of(R"({"a": 1})"), "parallel_group.json: byte 6: an object is expected here");
  EXPECT_EQ(error_of(R"({"a": {"global_ranks": [1, 2)"), "parallel_group.json: byte 28: ',' or ']' is expected here");
  EXPECT_EQ(error_of(R"({"a": {"x": )" + std::string(17, '[')), "parallel_group.json: byte 28: nested too deeply");
  EXPECT_EQ(error_of("{\"" + std::string(513, 'n') + "\": {}}"),
            "parallel_group.json: byte 517: a name has more than 512 bytes");
  std::string many = "{";
  for (size_t i = 0; i <= kMaxParallelGroups; ++i) many += "\"g\": {},";
  EXPECT_THAT(error_of(many), ::testing::EndsWith(": more than 1024 groups"));
}

TEST(ParallelGroup, ReadsFilesButNoLinks) {
  char name[] = "/tmp/parallel_group_test.XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const std::string dir = name;
  const std::string path = dir + "/parallel_group.json";
  EXPECT_EQ(ReadParallelGroups(path).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path) << R"({"a": {"group_name": "dp", "global_ranks": [4]}})";
  ASSERT_TRUE(ReadParallelGroups(path).ok());
  EXPECT_THAT(*ReadParallelGroups(path), ::testing::ElementsAre(GroupInfo{"a", "dp", {{4, 1, 1}}}));
  ASSERT_EQ(symlink(path.c_str(), (dir + "/link").c_str()), 0);
  EXPECT_EQ(ReadParallelGroups(dir + "/link").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadParallelGroups(dir).status().code(), absl::StatusCode::kFailedPrecondition);
  std::ofstream(path) << "{";
  absl::Status broken = ReadParallelGroups(path).status();
  EXPECT_EQ(broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.message()), ::testing::HasSubstr(path));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace taskd
