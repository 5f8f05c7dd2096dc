#include "diagnosis/stream.h"

#include <functional>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr Stream::Limits kLimits = {.sigma = 0.01, .dead = 0.01, .most = 0.035, .h = 10, .jump = 0.12};

// Observes `d(step)` from `first` to `last`; the step of the first event of a kind, -1 if there was none.
int64_t Watch(Stream& stream, int64_t first, int64_t last, const std::function<double(int64_t)>& d,
              Stream::Event event = Stream::Event::kRaised) {
  int64_t found = -1;
  for (int64_t step = first; step <= last; ++step) {
    if (stream.Observe(step, d(step), 100 * d(step), kLimits) == event && found < 0) found = step;
  }
  return found;
}

TEST(Stream, IsSilentBelowItsLimit) {
  Stream stream;
  EXPECT_EQ(Watch(stream, 0, 2000, [](int64_t step) { return step % 2 == 0 ? 0.015 : -0.015; }), -1);
  EXPECT_FALSE(stream.raised());
}

TEST(Stream, FindsARiseItsOnsetAndItsEnd) {
  Stream stream;
  Watch(stream, 0, 99, [](int64_t) { return 0.0; });
  // 9 sigma above the limit, clipped to 4, less the drift of 1: 3 a step, above 10 in the fourth.
  EXPECT_EQ(Watch(stream, 100, 150, [](int64_t) { return 0.1; }), 103);
  EXPECT_EQ(stream.onset(), 100);
  EXPECT_FALSE(stream.from_start());
  EXPECT_NEAR(stream.mean(), 0.1, 1e-9);
  EXPECT_NEAR(stream.mean_excess(), 10, 1e-9);
  EXPECT_EQ(Watch(
                stream, 151, 170, [](int64_t) { return 0.0; }, Stream::Event::kCleared),
            153);
  EXPECT_FALSE(stream.raised());
}

TEST(Stream, DatesARiseToTheStepThatShowsIt) {
  // Seen every tenth step only; the one before was half a sigma up by chance.
  Stream stream;
  for (int64_t step = 0; step < 300; step += 10) stream.Observe(step, 0, 0, kLimits);
  stream.Observe(300, 0.035, 3.5, kLimits);
  for (int64_t step = 310; !stream.raised(); step += 10) {
    ASSERT_LT(step, 400);
    stream.Observe(step, 0.1, 10, kLimits);
  }
  EXPECT_EQ(stream.onset(), 310);
  EXPECT_FALSE(stream.from_start());
  EXPECT_NEAR(stream.mean(), 0.1, 1e-9);
  EXPECT_NEAR(stream.mean_excess(), 10, 1e-9);
}

TEST(Stream, NeedsThreeStepsForALargeOne) {
  Stream stream;
  Watch(stream, 0, 50, [](int64_t) { return 0.0; });
  EXPECT_EQ(Watch(stream, 51, 60, [](int64_t) { return 0.5; }), 53);
}

TEST(Stream, DoesNotMindOneStepHoweverLarge) {
  Stream stream;
  EXPECT_EQ(Watch(stream, 0, 500, [](int64_t step) { return step % 100 == 50 ? 5.0 : 0.0; }), -1);
}

TEST(Stream, TakesALittleMoreThanPeersForNormalButNotALot) {
  Stream little;
  EXPECT_EQ(Watch(little, 0, 300, [](int64_t) { return 0.025; }), -1) << "2.5 % from the start";
  EXPECT_GE(Watch(little, 301, 320, [](int64_t) { return 0.08; }), 0) << "and then 8 %";
  Stream lot;
  EXPECT_GE(Watch(lot, 0, 60, [](int64_t) { return 0.06; }), 0) << "6 % from the start";
  EXPECT_TRUE(lot.from_start());
}

TEST(Stream, FindsWhatComesAndGoes) {
  Stream stream;
  Watch(stream, 0, 99, [](int64_t) { return 0.0; });
  Stream::Limits limits = kLimits;
  limits.spike_rate = limits.big_rate = 0.001;
  int64_t raised = -1;
  for (int64_t step = 100; step < 200 && raised < 0; ++step) {
    if (stream.Observe(step, step % 10 == 0 ? 0.4 : 0.0, 0, limits) == Stream::Event::kRaised) raised = step;
  }
  // Excess 0 costs nothing, so it is nothing; with an excess it is found.
  EXPECT_EQ(raised, -1);
  for (int64_t step = 200; step < 300 && raised < 0; ++step) {
    const double d = step % 10 == 0 ? 0.4 : 0.0;
    if (stream.Observe(step, d, 1e6 * d, limits) == Stream::Event::kRaised) raised = step;
  }
  EXPECT_GE(raised, 200);
  EXPECT_TRUE(stream.intermittent());
  EXPECT_LT(stream.mean(), 0.1) << "over all steps";
}

TEST(Stream, DatesWhatComesAndGoesToTheFirstThatRecurs) {
  Stream stream;
  Stream::Limits limits = kLimits;
  limits.spike_rate = limits.big_rate = 0.001;
  // One spike by chance in step 40, and from 100 on one in ten steps.
  for (int64_t step = 0; !stream.raised(); ++step) {
    ASSERT_LT(step, 200);
    const double d = step == 40 || (step >= 100 && step % 10 == 0) ? 0.4 : 0.0;
    stream.Observe(step, d, 1e6 * d, limits);
  }
  EXPECT_TRUE(stream.intermittent());
  EXPECT_EQ(stream.onset(), 100);
}

TEST(Stream, DatesBigSpikesToTheFirstBigOne) {
  Stream stream;
  Stream::Limits limits = kLimits;
  limits.spike_rate = 0.2;
  limits.big_rate = 0.001;
  // Small ones all the time, as the peers have them.
  for (int64_t step = 0; !stream.raised(); ++step) {
    ASSERT_LT(step, 200);
    const double d = step >= 100 && step % 10 == 0 ? 0.4 : step % 7 == 0 ? 0.08 : 0.0;
    stream.Observe(step, d, 1e6 * d, limits);
  }
  EXPECT_TRUE(stream.intermittent());
  EXPECT_EQ(stream.onset(), 100);
}

TEST(Stream, ClipsByThePeersTails) {
  Stream restless;
  StreamTails tails;
  for (int64_t step = 0; step < 100; ++step) restless.Observe(step, step % 5 == 0 ? 0.06 : 0.0, 0, kLimits);
  tails.Count(restless);
  Stream quiet;
  for (int64_t step = 0; step < 100; ++step) quiet.Observe(step, 0, 0, kLimits);
  tails.Count(quiet);
  Stream::Limits limits = kLimits;
  tails.Apply(limits, quiet);
  EXPECT_LT(limits.clip, 4) << "its peer is restless";
  tails.Apply(limits, restless);
  EXPECT_EQ(limits.clip, 4) << "its peer is quiet";
}

TEST(Stream, StaysRaisedAfterARestartOfTheJob) {
  Stream stream;
  Watch(stream, 0, 60, [](int64_t step) { return step < 40 ? 0.0 : 0.1; });
  ASSERT_TRUE(stream.raised());
  stream.Rebase();
  EXPECT_TRUE(stream.raised());
  EXPECT_EQ(stream.onset(), 40);
}

}  // namespace
}  // namespace taskd::diagnosis
