#include "common/testing/deadline.h"

#include "gtest/gtest.h"

namespace taskd::testing {
namespace {

using std::chrono::microseconds;

TEST(DeadlineTest, ReadsThePressureOfSomeProcesses) {
  EXPECT_EQ(PressureTotal("some avg10=1.53 avg60=1.72 avg300=1.81 total=10846391\n"
                          "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"),
            microseconds(10'846'391));
  EXPECT_EQ(PressureTotal("full avg10=0.00 total=7\nsome avg10=0.00 total=0"), microseconds(0));
}

TEST(DeadlineTest, OtherTextIsNoPressure) {
  for (const char* text :
       {"", "\n", "some", "some avg10=1.5\n", "some avg10=0.00 total=\n", "full avg10=0.00 total=7\n"}) {
    EXPECT_EQ(PressureTotal(text), std::nullopt) << text;
  }
  EXPECT_TRUE(PressureTotal("some avg10=0.00 total=99999999999999999999999999\n"));
}

TEST(DeadlineTest, ExtendsByTheStarvedTime) {
  EXPECT_EQ(Extension(microseconds(5), microseconds(5)), microseconds(0));
  EXPECT_EQ(Extension(microseconds(5), microseconds(12)), microseconds(7));
  EXPECT_EQ(Extension(microseconds(5), microseconds(1'000'000'000)), kMostStarved);
}

TEST(DeadlineTest, ExtendsByAllWhereTheKernelDoesNotCount) {
  EXPECT_EQ(Extension(std::nullopt, microseconds(5)), kMostStarved);
  EXPECT_EQ(Extension(microseconds(5), std::nullopt), kMostStarved);
}

TEST(DeadlineTest, IsOverAfterItsTime) {
  EXPECT_FALSE(Deadline().IsOver());
  EXPECT_FALSE(Deadline(std::chrono::hours(1)).IsOver());
  EXPECT_TRUE(Deadline(-kHangLimit).IsOver());
}

TEST(DeadlineTest, WaitsUntilTheConditionIsTrue) {
  int looks = 0;
  EXPECT_TRUE(WaitUntil([&] { return ++looks == 3; }));
  EXPECT_EQ(looks, 3);
}

TEST(DeadlineTest, WaitsForAnotherThread) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  EXPECT_TRUE(WaitFor(changed, lock, [&] { return done; }));
  lock.unlock();
  other.join();
}

}  // namespace
}  // namespace taskd::testing
