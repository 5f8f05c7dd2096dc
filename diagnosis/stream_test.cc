#include "diagnosis/stream.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

const Stream::Limits kLimits = {.dead = 0.01, .most = 0.035, .h = {10}, .jump = 0.12};

// Observes `d(step)` from `first` to `last`; the step of the first event of a kind, -1 if there was none.
int64_t Watch(Stream& stream, int64_t first, int64_t last, const std::function<double(int64_t)>& d,
              Stream::Event event = Stream::Event::kRaised) {
  int64_t found = -1;
  for (int64_t step = first; step <= last; ++step) {
    if (stream.Observe(step, d(step), {100 * d(step)}, kLimits) == event && found < 0) found = step;
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
  EXPECT_NEAR(stream.mean(), 0.1, 1e-8);
  EXPECT_NEAR(stream.mean_excess(), 10, 1e-9);
  EXPECT_EQ(Watch(
                stream, 151, 170, [](int64_t) { return 0.0; }, Stream::Event::kCleared),
            153);
  EXPECT_FALSE(stream.raised());
}

TEST(Stream, DatesARiseToTheStepThatShowsIt) {
  // Seen every tenth step only; the one before was half a sigma up by chance.
  Stream stream;
  for (int64_t step = 0; step < 300; step += 10) stream.Observe(step, 0, {0}, kLimits);
  stream.Observe(300, 0.035, {3.5}, kLimits);
  for (int64_t step = 310; !stream.raised(); step += 10) {
    ASSERT_LT(step, 400);
    stream.Observe(step, 0.1, {10}, kLimits);
  }
  EXPECT_EQ(stream.onset(), 310);
  EXPECT_FALSE(stream.from_start());
  EXPECT_NEAR(stream.mean(), 0.1, 1e-8);
  EXPECT_NEAR(stream.mean_excess(), 10, 1e-9);
}

TEST(Stream, KnowsWhereWhatCameBackBegan) {
  Stream stream;
  Watch(stream, 0, 99, [](int64_t) { return 0.0; });
  ASSERT_EQ(Watch(stream, 100, 120, [](int64_t) { return 0.1; }), 103);
  EXPECT_EQ(stream.returned(), 100);
  Watch(stream, 121, 150, [](int64_t) { return 0.0; });
  ASSERT_FALSE(stream.raised());
  ASSERT_EQ(Watch(stream, 151, 160, [](int64_t) { return 0.1; }), 154);
  EXPECT_EQ(stream.onset(), 100) << "it was never quite gone";
  EXPECT_EQ(stream.returned(), 151);
}

TEST(Stream, StandsOutWhereMeansOfAsManyStepsDoNotDifferSo) {
  Stream::Limits limits = kLimits;
  limits.SetNoise(0.01, {0.02F, 0.06F, 0.06F, 0, 0});
  ASSERT_GT(limits.sigmas[0], 0.02) << "noise goes together for some steps";
  const auto steps_until = [&](double rise, auto is_so) {
    Stream stream;
    int64_t step = 0;
    for (; step < 100; ++step) stream.Observe(step, 0, {0}, limits);
    while (step < 2000 && !is_so(stream)) stream.Observe(step++, rise, {100 * rise}, limits);
    return step - 100;
  };
  const auto is_raised = [](const Stream& stream) { return stream.raised(); };
  const auto stands_out = [](const Stream& stream) { return stream.StandsOut(); };
  // Blocks of 16 steps differ by 0.06 / 4: six of that and the limit of 0.01 are less than 0.11, and more than 0.07.
  EXPECT_LT(steps_until(0.07, is_raised), 16);
  EXPECT_LT(steps_until(0.11, stands_out), 16);
  EXPECT_GT(steps_until(0.07, stands_out), 16);
  EXPECT_LT(steps_until(0.07, stands_out), 64) << "it lasts";
}

TEST(Stream, IsUsualWhereMeansOfAboutAsManyStepsDifferNearlyAsMuch) {
  const auto is_usual = [](double rise, int steps, const ScaleSigmas& measured) {
    Stream::Limits limits = kLimits;
    limits.SetNoise(0.01, measured);
    Stream stream;
    for (int64_t step = 0; step < 100; ++step) stream.Observe(step, 0, {0}, limits);
    for (int64_t step = 100; step < 100 + steps; ++step) stream.Observe(step, rise, {100 * rise}, limits);
    EXPECT_TRUE(stream.raised()) << rise;
    return stream.IsUsual();
  };
  // Means of 4, 16 and 64 steps differ by 0.01 each, and by a little more of steps in between: three times that are 0.042.
  EXPECT_TRUE(is_usual(0.04, 90, {0.02F, 0.04F, 0.08F, 0.16F, 0}));
  EXPECT_FALSE(is_usual(0.06, 90, {0.02F, 0.04F, 0.08F, 0.16F, 0}));
  EXPECT_FALSE(is_usual(0.04, 90, {0.02F, 0.04F, 0, 0, 0})) << "more than is expected of so many steps";
}

TEST(Stream, IsUsualWhereNoiseThatGrewMayGoOnToGrow) {
  const auto is_usual = [](double rise, const ScaleSigmas& measured) {
    Stream::Limits limits = kLimits;
    Stream stream;
    for (int64_t step = 0; step < 110; ++step) stream.Observe(step, step < 100 ? 0 : rise, {1}, limits);
    EXPECT_TRUE(stream.raised()) << rise;
    limits.SetNoise(0.01, measured);
    for (int64_t step = 110; step < 190; ++step) stream.Observe(step, rise, {1}, limits);
    EXPECT_TRUE(stream.raised()) << rise;
    return stream.IsUsual();
  };
  // 90 steps, of which blocks of 16 tell nothing: three times what is expected of their mean are 0.05; 0.03 without growth.
  EXPECT_TRUE(is_usual(0.035, {0.02F, 0.06F, 0, 0, 0}));
  EXPECT_FALSE(is_usual(0.06, {0.02F, 0.06F, 0, 0, 0}));
  EXPECT_FALSE(is_usual(0.035, {0.055F, 0.06F, 0, 0, 0})) << "it has not grown any more";
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

TEST(Stream, LearnsItsPastToTheLastDigitThatCounts) {
  Stream stream;
  Watch(stream, 0, 9999, [](int64_t) { return 0.0; });
  // A little more from now on, whose share of the mean a step is 1 / 8192.
  Watch(stream, 10'000, 39'999, [](int64_t step) { return step % 2 == 0 ? 0.001 : 0.003; });
  EXPECT_NEAR(stream.base(), 0.002 * (1 - std::pow(1 - 1.0 / 8192, 30'000)), 1e-6);
}

TEST(Stream, KeepsASumWhoseNoiseIsNotKnownForAWhile) {
  Stream stream;
  Stream::Limits known = kLimits;
  known.h = {10, 10};
  known.SetNoise(0.01, {0.01F, 0.01F});
  known.sigmas[2] = 0;
  Stream::Limits unknown = known;
  unknown.sigmas[1] = 0;
  int64_t step = 0;
  for (; step < 100; ++step) stream.Observe(step, 0, {0}, known);
  // Too little for the first sum; some twentieth of its threshold a step for the second.
  for (; step < 115; ++step) stream.Observe(step, 0.019, {1.9}, known);
  ASSERT_TRUE(stream.IsRising(0.5) && !stream.raised());
  stream.Observe(step++, 0, {0}, unknown);
  EXPECT_FALSE(stream.IsRising(0.1));
  for (; step < 128; ++step) stream.Observe(step, 0.019, {1.9}, known);
  EXPECT_TRUE(stream.raised());
  EXPECT_EQ(stream.onset(), 100);
}

TEST(Stream, FindsWhatComesAndGoes) {
  Stream stream;
  Watch(stream, 0, 99, [](int64_t) { return 0.0; });
  Stream::Limits limits = kLimits;
  limits.spike_rate = limits.big_rate = 0.001;
  int64_t raised = -1;
  for (int64_t step = 100; step < 200 && raised < 0; ++step) {
    if (stream.Observe(step, step % 10 == 0 ? 0.4 : 0.0, {0}, limits) == Stream::Event::kRaised) raised = step;
  }
  // Excess 0 costs nothing, so it is nothing; with an excess it is found.
  EXPECT_EQ(raised, -1);
  for (int64_t step = 200; step < 300 && raised < 0; ++step) {
    const double d = step % 10 == 0 ? 0.4 : 0.0;
    if (stream.Observe(step, d, {1e6 * d}, limits) == Stream::Event::kRaised) raised = step;
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
    stream.Observe(step, d, {1e6 * d}, limits);
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
    stream.Observe(step, d, {1e6 * d}, limits);
  }
  EXPECT_TRUE(stream.intermittent());
  EXPECT_EQ(stream.onset(), 100);
}

TEST(Stream, ClipsByThePeersTails) {
  Stream restless;
  StreamTails tails;
  for (int64_t step = 0; step < 100; ++step) restless.Observe(step, step % 5 == 0 ? 0.06 : 0.0, {0}, kLimits);
  tails.Count(restless);
  Stream quiet;
  for (int64_t step = 0; step < 100; ++step) quiet.Observe(step, 0, {0}, kLimits);
  tails.Count(quiet);
  Stream::Limits limits = kLimits;
  tails.Apply(limits, quiet);
  EXPECT_LT(limits.clip, 4) << "its peer is restless";
  tails.Apply(limits, restless);
  EXPECT_EQ(limits.clip, 4) << "its peer is quiet";
}

// Peers whose noise is `sigma` a step, of which each is `kept` the next step's: what the streams of a class are fed with.
class NoisyClass {
 public:
  NoisyClass(int ranks, double sigma, double kept, unsigned seed)
      : streams_(static_cast<size_t>(ranks)), values_(streams_.size()), random_(seed), sigma_(sigma), kept_(kept) {}

  // True: the rank is raised.
  bool Step(int slow, double rise) {
    std::normal_distribution<double> normal(0, sigma_ * std::sqrt(1 - kept_ * kept_));
    noise_.Update(sigma_);
    Stream::Limits limits = {.dead = 0.01, .most = 0.035, .h = ThresholdsFor(1e9)};
    limits.SetNoise(sigma_, noise_.sigmas());
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      values_[rank] = kept_ * values_[rank] + normal(random_);
      const double d = values_[rank] + (static_cast<int>(rank) == slow ? rise : 0);
      streams_[rank].Observe(step_, d, {d}, limits);
      noise_.Add(static_cast<int>(rank), d, !streams_[rank].raised());
    }
    ++step_;
    return slow >= 0 && streams_[static_cast<size_t>(slow)].raised();
  }
  int Raised() const {
    return static_cast<int>(
        std::count_if(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.raised(); }));
  }
  const Stream& stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }

 private:
  std::vector<Stream> streams_;
  std::vector<double> values_;
  std::mt19937 random_;
  ScaleNoise noise_;
  double sigma_, kept_;
  int64_t step_ = 0;
};

TEST(Stream, FindsALastingRiseThatIsSmallerThanTheNoiseOfAStep) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    NoisyClass peers(8, 0.25, 0, seed);
    for (int step = 0; step < 400; ++step) peers.Step(-1, 0);
    ASSERT_EQ(peers.Raised(), 0);
    int steps = 1;
    while (!peers.Step(3, 0.12) && steps < 2000) ++steps;
    EXPECT_LT(steps, 600) << "half of the noise; ln 1e9 / (0.48^2 / 2) are 180";
    EXPECT_EQ(peers.Raised(), 1);
    EXPECT_NEAR(peers.stream(3).mean(), 0.12, 4 * peers.stream(3).error());
    EXPECT_LT(peers.stream(3).error(), 0.03);
  }
}

TEST(Stream, TakesNoiseThatGoesTogetherForAWhileForWhatItIs) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    NoisyClass peers(8, 0.2, 0.9, seed);
    for (int step = 0; step < 100; ++step) peers.Step(-1, 0);
    int raised = 0;
    for (int step = 0; step < 3000; ++step) {
      peers.Step(-1, 0);
      raised += peers.Raised();
    }
    EXPECT_EQ(raised, 0);
  }
}

TEST(ScaleNoise, IsThatOfOneObservationWhereEachIsAnew) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 0.05);
  ScaleNoise noise;
  for (int step = 0; step < 4 * kBlock.back(); ++step) {
    for (int source = 0; source < 16; ++source) noise.Add(source, normal(random), true);
  }
  noise.Update(0.05);
  for (const float sigma : noise.sigmas()) EXPECT_NEAR(sigma, 0.05, 0.015);
}

TEST(ScaleNoise, ListensToAFewAndToOthersOnceTheyAreGone) {
  ScaleNoise noise;
  for (int step = 0; step < 40; ++step) {
    for (int source = 0; source < 1000; ++source) noise.Add(source, source < 16 ? 0 : step % 8, true);
  }
  noise.Update(0.1);
  EXPECT_EQ(noise.SigmasWithout(0, 0.1, false)[0], 0) << "the first ones";
  for (int step = 0; step < 1 << 17; ++step) {
    for (int source = 100; source < 116; ++source) noise.Add(source, step / 4 % 2, true);
  }
  EXPECT_GT(noise.SigmasWithout(0, 0.1, false)[0], 0);
}

// A few long blocks that happen to be alike.
TEST(ScaleNoise, ExpectsOfLongBlocksWhatShorterOnesShowUntilThereAreMany) {
  constexpr int kLong = kBlock[2];
  const auto sigma_after = [](int blocks) {
    ScaleNoise noise;
    for (int step = 0; step < blocks * kLong; ++step) {
      // Steps of a block of 16 are the same; blocks of 64 have two of one kind and two of the other.
      const double part = step / kBlock[1] % 4 < 2 ? 0.1 : -0.1;
      for (int source = 0; source < 16; ++source) noise.Add(source, part + (step / kLong % 2) * 0.001, true);
    }
    noise.Update(0.01);
    return noise.sigmas()[2] / noise.sigmas()[1];
  };
  EXPECT_GT(sigma_after(3), 1) << "32 blocks";
  EXPECT_LT(sigma_after(17), 1) << "256 of them";
}

TEST(ScaleNoise, KnowsNothingAtFirst) {
  const ScaleNoise noise;
  EXPECT_EQ(noise.sigmas()[0], 0);
  Stream::Limits limits;
  limits.SetNoise(0.1, noise.sigmas());
  EXPECT_EQ(limits.sigma, 0.1);
  EXPECT_EQ(limits.sigmas[0], 0.1);
  EXPECT_EQ(limits.sigmas[1], 0);
}

TEST(SetNoise, GoesOneScaleBeyondWhatIsMeasuredWhereNoiseIsSteady) {
  Stream::Limits limits;
  limits.SetNoise(0.1, {0.11F, 0, 0, 0, 0});
  EXPECT_GT(limits.sigmas[1], 0.11);
  EXPECT_EQ(limits.sigmas[2], 0);
  limits.SetNoise(0.1, {0.3F, 0, 0, 0, 0});
  EXPECT_EQ(limits.sigmas[1], 0) << "it grows";
}

TEST(Stream, IsUsualWhereNobodyKnowsYetHowMeansOfAsManyStepsDiffer) {
  Stream::Limits limits = kLimits;
  limits.SetNoise(0.1, {0.3F, 0, 0, 0, 0});
  ASSERT_EQ(limits.sigmas[1], 0) << "not known, where noise goes together";
  Stream stream;
  int64_t step = 0;
  for (; step < 20; ++step) stream.Observe(step, 0, {0}, limits);
  const auto rise_until = [&](int64_t last) {
    for (; step < last; ++step) stream.Observe(step, 0.7, {70}, limits);
  };
  rise_until(200);
  ASSERT_TRUE(stream.raised());
  EXPECT_TRUE(stream.IsUsual()) << "180 steps, of which blocks of four tell nothing";
  limits.SetNoise(0.1, {0.3F, 0.35F, 0, 0, 0});
  rise_until(201);
  EXPECT_FALSE(stream.IsUsual()) << "it does not go on to grow";
}

TEST(Stream, StaysRaisedAfterARestartOfTheJob) {
  Stream stream;
  Watch(stream, 0, 60, [](int64_t step) { return step < 40 ? 0.0 : 0.1; });
  ASSERT_TRUE(stream.raised());
  stream.Rebase();
  EXPECT_TRUE(stream.raised());
  EXPECT_EQ(stream.onset(), 40);
}

TEST(Stream, WasWithoutARiseWhereItWasWatchedBeforeARestart) {
  for (const int watched : {0, 15, 16}) {
    Stream stream;
    Watch(stream, 0, watched - 1, [](int64_t) { return 0.0; });
    stream.Rebase();
    stream.Rebase();  // nothing was observed in between
    EXPECT_EQ(Watch(stream, 50, 60, [](int64_t) { return 0.1; }), 53);
    EXPECT_EQ(stream.onset(), 50);
    EXPECT_EQ(stream.from_start(), watched <= 15) << watched;
  }
  Stream stream;
  Watch(stream, 0, 60, [](int64_t) { return 0.0; });
  stream.Rebase();
  Watch(stream, 61, 65, [](int64_t) { return 0.0; });
  stream.Rebase();
  Watch(stream, 66, 80, [](int64_t) { return 0.1; });
  EXPECT_TRUE(stream.raised());
  EXPECT_FALSE(stream.from_start()) << "a few steps after it do not undo that";
}

}  // namespace
}  // namespace taskd::diagnosis
