#include "manager/supervision/hang_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace taskd::manager {
namespace {

using PhaseKind = OpenPhase::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<RankPulse> Ranks(const std::vector<PhaseKind>& kinds) {
  std::vector<RankPulse> ranks;
  for (const PhaseKind kind : kinds) {
    RankPulse& rank = ranks.emplace_back();
    rank.rank = static_cast<int>(ranks.size()) - 1;
    rank.step = 57;
    rank.open = {kind, 1000 + ranks.size(), kind == PhaseKind::kCommunication ? "all_reduce" : ""};
  }
  return ranks;
}

TEST(FindOriginTest, WhoIsElsewhereWhileTheOthersCommunicate) {
  const HangOrigin origin =
      FindOrigin(Ranks({PhaseKind::kCommunication, PhaseKind::kDataLoader, PhaseKind::kCommunication}));
  EXPECT_THAT(origin.ranks, ElementsAre(1));
  EXPECT_EQ(origin.operation, "all_reduce");
  EXPECT_EQ(origin.since_ns, 1002u);
  EXPECT_EQ(origin.text, "rank 1 is in its data loader, in step 58, and 2 ranks wait in all_reduce");
}

TEST(FindOriginTest, OneOfTwo) {
  EXPECT_THAT(FindOrigin(Ranks({PhaseKind::kCheckpoint, PhaseKind::kCommunication})).ranks, ElementsAre(0));
  EXPECT_EQ(FindOrigin(Ranks({PhaseKind::kCommunication, PhaseKind::kNone})).text,
            "rank 1 is in no communication, in step 58, and 1 rank waits in all_reduce");
}

TEST(FindOriginTest, WithoutMarksOfCommunicationOnlyWhoIsInAPhaseIsNamed) {
  EXPECT_THAT(FindOrigin(Ranks({PhaseKind::kNone, PhaseKind::kNone, PhaseKind::kDataLoader, PhaseKind::kNone})).ranks,
              ElementsAre(2));
  EXPECT_THAT(FindOrigin(Ranks({PhaseKind::kForward, PhaseKind::kCheckpoint, PhaseKind::kForward})).ranks,
              ElementsAre(1));
}

TEST(FindOriginTest, SeveralThatAreNotAlike) {
  const HangOrigin origin =
      FindOrigin(Ranks({PhaseKind::kCommunication, PhaseKind::kDataLoader, PhaseKind::kCommunication,
                        PhaseKind::kForward, PhaseKind::kCommunication}));
  EXPECT_THAT(origin.ranks, ElementsAre(1, 3));
  EXPECT_EQ(origin.text,
            "ranks 1, 3 are elsewhere, rank 1 in its data loader, in step 58, and 3 ranks wait in all_reduce");
}

TEST(FindOriginTest, WhereAllStandAlikeNobodyIsNamed) {
  for (const PhaseKind kind : {PhaseKind::kNone, PhaseKind::kForward, PhaseKind::kDataLoader, PhaseKind::kCheckpoint,
                               PhaseKind::kCommunication}) {
    EXPECT_THAT(FindOrigin(Ranks({kind, kind, kind})).ranks, IsEmpty()) << static_cast<int>(kind);
  }
}

// A stage that sends while all others are between operations says nothing of those.
TEST(FindOriginTest, FewThatCommunicateAccuseNobody) {
  EXPECT_THAT(
      FindOrigin(Ranks({PhaseKind::kCommunication, PhaseKind::kNone, PhaseKind::kNone, PhaseKind::kNone})).ranks,
      IsEmpty());
}

}  // namespace
}  // namespace taskd::manager
