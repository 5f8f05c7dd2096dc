#include "common/switch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::HasSubstr;

constexpr KindMask kCommunication = MaskOf(SwitchKind::kCommunication);
constexpr KindMask kDefaultDomain = kAllKindsMask & ~kCommunication;

// Contract §1.1: all 32 combinations of the five strings.
TEST(ParseKindsTest, NamesOfKinds) {
  EXPECT_EQ(*ParseKinds("all"), kAllKindsMask);
  EXPECT_EQ(*ParseKinds("forward,checkpoint"), MaskOf(SwitchKind::kForward) | MaskOf(SwitchKind::kSaveCheckpoint));
  EXPECT_EQ(*ParseKinds("fp,save_checkpoint"), *ParseKinds("forward,checkpoint"));
  for (const char* text : {"", "step,", "all,step", "Step", "step communication"}) {
    EXPECT_EQ(ParseKinds(text).status().message(), kSwitchKindsRule) << text;
  }
}

TEST(SwitchTest, ClusterdTruthTable) {
  for (KindMask strings = 0; strings <= kAllKindsMask; ++strings) {
    SwitchChange change;
    for (int i = 0; i < kNumSwitches; ++i) change[i] = (strings >> i & 1) != 0;
    // From any state: all five strings say everything.
    for (KindMask before : {KindMask{0}, kAllKindsMask, kCommunication}) {
      SwitchState next = ApplyClusterdChange({7, before, before}, change);
      EXPECT_EQ(next.revision, 8u);
      EXPECT_EQ(next.requested, strings);
      KindMask expected = strings == 0 ? 0 : kDefaultDomain;
      if ((strings & kCommunication) != 0) expected = kAllKindsMask;
      EXPECT_EQ(next.effective, expected) << "strings " << strings;
    }
  }
}

TEST(SwitchTest, ClusterdChangeLeavesAbsentOnes) {
  SwitchChange step_on;
  step_on[static_cast<int>(SwitchKind::kStep)] = true;
  SwitchState state = ApplyClusterdChange({}, step_on);
  EXPECT_EQ(state, (SwitchState{1, MaskOf(SwitchKind::kStep), kDefaultDomain}));

  SwitchChange communication_on;
  communication_on[static_cast<int>(SwitchKind::kCommunication)] = true;
  state = ApplyClusterdChange(state, communication_on);
  EXPECT_EQ(state, (SwitchState{2, MaskOf(SwitchKind::kStep) | kCommunication, kAllKindsMask}));

  SwitchChange off;
  off[static_cast<int>(SwitchKind::kStep)] = false;
  state = ApplyClusterdChange(state, off);
  EXPECT_EQ(state, (SwitchState{3, kCommunication, kAllKindsMask})) << "off only if all five are off";
  off[static_cast<int>(SwitchKind::kCommunication)] = false;
  EXPECT_EQ(ApplyClusterdChange(state, off), (SwitchState{4, 0, 0}));
}

TEST(SwitchTest, KindsAreSwitchedOneByOne) {
  SwitchChange change;
  change[static_cast<int>(SwitchKind::kForward)] = true;
  SwitchState state = ApplyKindChange({}, change);
  EXPECT_EQ(state, (SwitchState{1, MaskOf(SwitchKind::kForward), MaskOf(SwitchKind::kForward)}));

  // What ClusterD's rule made effective stays, but for the kind that is named.
  state = ApplyClusterdChange({}, change);
  change = {};
  change[static_cast<int>(SwitchKind::kDataLoader)] = false;
  state = ApplyKindChange(state, change);
  EXPECT_EQ(state.effective, kDefaultDomain & ~MaskOf(SwitchKind::kDataLoader));
  EXPECT_EQ(state.requested, MaskOf(SwitchKind::kForward));
}

TEST(SwitchTest, ARepeatedChangeIsANewRevision) {
  SwitchChange change;
  change[0] = true;
  SwitchState once = ApplyKindChange({}, change);
  SwitchState twice = ApplyKindChange(once, change);
  EXPECT_EQ(twice.revision, 2u);
  EXPECT_EQ(twice.effective, once.effective);
}

TEST(SwitchTest, Names) {
  for (int i = 0; i < kNumSwitches; ++i) {
    auto kind = static_cast<SwitchKind>(i);
    EXPECT_EQ(SwitchKindFromName(SwitchKindName(kind)), kind);
    EXPECT_EQ(SwitchKindFromName(SwitchKindWord(kind)), kind);
  }
  EXPECT_EQ(SwitchKindFromName("Step"), std::nullopt);
  EXPECT_EQ(SwitchKindFromName("all"), std::nullopt);
  EXPECT_EQ(SwitchKindFromName(""), std::nullopt);
}

TEST(SwitchTest, ValuesAreCaseSensitive) {
  EXPECT_EQ(ParseSwitchValue("Step", "on").value(), true);
  EXPECT_EQ(ParseSwitchValue("Step", "off").value(), false);
  EXPECT_EQ(ParseSwitchValue("Step", "").value(), std::nullopt);
  for (const char* bad : {"ON", "Off", "true", "1", " on", "on\n"}) {
    absl::Status status = ParseSwitchValue("Step", bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Step")) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
  EXPECT_LT(ParseSwitchValue("Step", std::string(1 << 20, 'x')).status().message().size(), 200u);
}

TEST(SwitchTest, ReadsTheConfigMapText) {
  auto change = ParseSwitchJson(R"({"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"","New":3})");
  ASSERT_TRUE(change.ok()) << change.status();
  SwitchChange expected;
  expected[static_cast<int>(SwitchKind::kStep)] = true;
  expected[static_cast<int>(SwitchKind::kSaveCheckpoint)] = true;
  expected[static_cast<int>(SwitchKind::kCommunication)] = false;
  EXPECT_EQ(*change, expected);
}

TEST(SwitchTest, RefusesBrokenText) {
  for (const char* bad : {"", "x", "[]", "null", "{}", R"({"step":"on"})", R"({"Step":true})", R"({"Step":"ON"})",
                          R"({"Step":"on")", R"({"Step":"on"}{"Step":"on"})"}) {
    EXPECT_EQ(ParseSwitchJson(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(ParseSwitchJson(std::string(100000, '[')).ok());
  std::string big = R"({"Step":"on"})" + std::string(1024 * 1024, ' ');
  EXPECT_THAT(std::string(ParseSwitchJson(big).status().message()), HasSubstr("bytes"));
}

}  // namespace
}  // namespace taskd
