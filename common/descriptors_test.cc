#include "common/descriptors.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(Descriptors, SoftLimitIsRaisedAndRemembered) {
  rlimit first;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &first), 0);
  const rlimit low = {64, first.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_FALSE(DescriptorLimitBefore());
  RaiseDescriptorLimit();
  rlimit now;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, first.rlim_max);
  EXPECT_EQ(now.rlim_max, first.rlim_max);
  RaiseDescriptorLimit();  // it is as high as it can be
  ASSERT_TRUE(DescriptorLimitBefore());
  EXPECT_EQ(DescriptorLimitBefore()->rlim_cur, 64u);
  EXPECT_EQ(DescriptorLimitBefore()->rlim_max, first.rlim_max);
}

}  // namespace
}  // namespace taskd
