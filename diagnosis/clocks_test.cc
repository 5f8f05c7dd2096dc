#include "diagnosis/clocks.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr uint64_t kEnd = 1'700'000'000'000'000'000;

// Three nodes of one rank; groups {0, 1} and {1, 2}, and clocks that are ahead by `ahead_ns`.
std::vector<std::pair<int, StepFold>> Step(const std::vector<int64_t>& ahead_ns) {
  std::vector<std::pair<int, StepFold>> folds;
  for (int rank = 0; rank < 3; ++rank) {
    StepFold fold;
    auto sample = [&](uint16_t index) {
      const uint64_t end = kEnd + static_cast<uint64_t>(ahead_ns[static_cast<size_t>(rank)]);
      fold.samples.push_back({index, CommOp::kAllReduce, 0, end - 1000, end});
    };
    sample(0);
    if (rank == 1) sample(1);
    folds.emplace_back(rank, fold);
  }
  return folds;
}

TEST(Clocks, FollowAChainOfGroups) {
  Layout layout;
  for (int rank = 0; rank < 3; ++rank) layout.SetPlace(rank, {rank, "h", 0});
  layout.SetGroup(0, 0, {"a", "dp", CompressMembers({0, 1})});
  layout.SetGroup(1, 0, {"a", "dp", CompressMembers({0, 1})});
  layout.SetGroup(1, 1, {"b", "dp", CompressMembers({1, 2})});
  layout.SetGroup(2, 0, {"b", "dp", CompressMembers({1, 2})});
  layout.Rebuild();
  Clocks clocks;
  EXPECT_EQ(clocks.OffsetNs(2), 0);
  clocks.Add(layout, Step({0, 30'000'000, -20'000'000}));
  clocks.Solve();
  EXPECT_EQ(clocks.OffsetNs(0), 0);
  EXPECT_NEAR(static_cast<double>(clocks.OffsetNs(1)), 30e6, 10);
  EXPECT_NEAR(static_cast<double>(clocks.OffsetNs(2)), -20e6, 10);
  EXPECT_EQ(clocks.OffsetNs(7), 0) << "unknown";
  clocks.Forget();
  EXPECT_EQ(clocks.OffsetNs(1), 0);
}

}  // namespace
}  // namespace taskd::diagnosis
