#include "common/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;

// Hours lie between them, so that it does not matter how long setting them takes.
TEST(EventLoop, TimersRunInOrderOfTime) {
  constexpr int64_t kHourNs = 3'600'000'000'000;
  EventLoop loop;
  std::vector<int> ran;
  loop.RunAfter(-1 * kHourNs, [&] { ran.push_back(3); });
  loop.RunAfter(0, [&] { loop.Stop(); });
  loop.RunAfter(-3 * kHourNs, [&] { ran.push_back(1); });
  loop.RunAfter(-2 * kHourNs, [&] { ran.push_back(2); });
  loop.Run();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

TEST(EventLoop, CancelledTimerDoesNotRun) {
  EventLoop loop;
  bool ran = false;
  EventLoop::TimerId timer = loop.RunAfter(0, [&] { ran = true; });
  loop.Cancel(timer);
  loop.RunAfter(1'000'000, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(ran);
  loop.Cancel(timer);  // again, long gone
}

TEST(EventLoop, PostedFromAnotherThreadRunsInOrder) {
  EventLoop loop;
  std::vector<int> ran;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) loop.Post([&, i] { ran.push_back(i); });
    loop.Post([&] { loop.Stop(); });
  });
  loop.Run();
  other.join();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
}

// Nothing else wakes it: each is posted by the one before, in a timer, at a round's end and in what another thread has posted.
TEST(EventLoop, PostedFromItsOwnThreadRunsInOrder) {
  EventLoop loop;
  std::vector<int> ran;
  std::thread other;
  loop.RunAfter(0, [&] {
    loop.Post([&] {
      ran.push_back(2);
      loop.AtRoundEnd([&] {
        loop.Post([&] {
          ran.push_back(4);
          other = std::thread([&] {
            loop.Post([&] {
              loop.Post([&] { ran.push_back(6); });
              loop.Post([&] { loop.Stop(); });
              ran.push_back(5);
            });
          });
        });
        ran.push_back(3);
      });
    });
    ran.push_back(1);
  });
  loop.Run();
  other.join();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(EventLoop, RoundEndComesAfterTheRoundsEventsAndMayAskForAnother) {
  EventLoop loop;
  std::vector<std::string> ran;
  UniqueFd a(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  UniqueFd b(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  auto on = [&](int fd, const char* name) {
    loop.Add(fd, EPOLLIN, [&, fd, name](uint32_t) {
      ran.push_back(name);
      loop.Remove(fd);
      if (ran.size() > 1) return;
      loop.AtRoundEnd([&] {
        ran.push_back("end");
        loop.AtRoundEnd([&] { loop.Stop(); });
      });
    });
  };
  on(a.get(), "a");
  on(b.get(), "b");
  loop.Run();
  EXPECT_THAT(ran, ElementsAre("a", "b", "end"));
}

// Three descriptors are ready, and the first one's callback takes all of the round's time.
class LongRoundTest : public ::testing::Test {
 protected:
  // `on_first` is called once.
  void Run(const EventLoop::Callback& on_first) {
    std::vector<UniqueFd> ready;
    for (const char* name : {"first", "second", "third"}) {
      ready.emplace_back(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
      loop_.Add(ready.back().get(), EPOLLIN, [this, &on_first, name, fd = ready.back().get()](uint32_t) {
        const TimeSlice slice;
        loop_.Remove(fd);
        ran_.emplace_back(name);
        if (ran_.size() == 1) on_first();
        while (ran_.size() == 1 && !slice.is_over()) {
        }
        if (++callbacks_ == 3) loop_.Stop();
      });
    }
    loop_.Run();
  }

  EventLoop loop_;
  std::vector<std::string> ran_;
  int callbacks_ = 0;
};

TEST_F(LongRoundTest, EndsTheRoundAndGoesOnWithTheOthers) {
  Run([this] { loop_.AtRoundEnd([this] { ran_.emplace_back("end"); }); });
  EXPECT_THAT(ran_, ElementsAre("first", "end", "second", "third"));
}

TEST_F(LongRoundTest, RunsACallOfAnotherThreadBeforeTheOthers) {
  Run([this] { std::thread([this] { loop_.Post([this] { ran_.emplace_back("posted"); }); }).join(); });
  EXPECT_THAT(ran_, ElementsAre("first", "posted", "second", "third"));
}

// A callback closes a descriptor whose own event is still to be delivered in this round, and its number is used again.
TEST(EventLoop, EventOfARemovedDescriptorDoesNotReachItsSuccessor) {
  EventLoop loop;
  UniqueFd first(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  UniqueFd second(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  UniqueFd successor;
  bool wrong = false;
  loop.Add(first.get(), EPOLLIN, [&](uint32_t) {
    const int number = second.get();
    loop.Remove(first.get());
    loop.Remove(number);
    second.reset();
    successor.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    ASSERT_EQ(successor.get(), number);
    loop.Add(number, EPOLLIN, [&](uint32_t) { wrong = true; });
    loop.RunAfter(1'000'000, [&] { loop.Stop(); });
  });
  loop.Add(second.get(), EPOLLIN, [&](uint32_t) { FAIL() << "the first callback has removed it"; });
  loop.Run();
  EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace taskd
