#include "common/testing/free_port.h"

#include "common/listen.h"
#include "gtest/gtest.h"

namespace taskd::testing {
namespace {

TEST(FreePortTest, APortIsGivenOnce) {
  const int port = FreePort();
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
  EXPECT_FALSE(HoldPort(port));
}

TEST(FreePortTest, ConsecutivePortsAreAllHeld) {
  const int first = FreePort(3);
  for (int port = first; port < first + 3; ++port) {
    EXPECT_FALSE(HoldPort(port));
    EXPECT_TRUE(ListenTcp({"127.0.0.1", port}, true).ok());
  }
}

TEST(FreePortTest, APortThatSomebodyListensOnIsTaken) {
  const absl::StatusOr<UniqueFd> listener = ListenTcp({"127.0.0.1", 0}, true);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_FALSE(HoldPort(LocalPort(listener->get())));
}

}  // namespace
}  // namespace taskd::testing
