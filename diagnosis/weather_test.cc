#include "diagnosis/weather.h"

#include "diagnosis/parameters.h"
#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

TEST(Weather, ExplainsWhatMayGoAsItCame) {
  Weather weather;
  EXPECT_FALSE(weather.Explains(1, 8, 1));
  weather.Add(0, 100, 104, 1e9, 1e6);
  EXPECT_TRUE(weather.Explains(1, 8, 4e9));
  EXPECT_TRUE(weather.Explains(1, 8, 8e9));
  EXPECT_DOUBLE_EQ(weather.ExplainsUntilNs(1, 8), 8e9);
  EXPECT_FALSE(weather.Explains(1, 8, 8.1e9)) << "twice as long as any";
  EXPECT_TRUE(weather.Explains(0, 8, 5e9)) << "its own went, too";
  Weather short_ones;
  short_ones.Add(0, 100, 110, 1e7, 1e6);
  EXPECT_TRUE(short_ones.Explains(1, 8, 5e9));
  EXPECT_FALSE(short_ones.Explains(1, 8, 5.1e9));
}

TEST(Weather, IsNoExcuseForTheOneThatIsHitAgainAndAgain) {
  Weather weather;
  weather.Add(3, 0, 20, 1e8, 1);
  for (int64_t step : {100, 200, 300}) weather.Add(5, step, step + 20, 1e8, 1);
  EXPECT_TRUE(weather.Explains(5, 8, 10e8)) << "three of four may be chance";
  for (int64_t step : {400, 500, 600}) weather.Add(5, step, step + 20, 1e8, 1);
  EXPECT_FALSE(weather.Explains(5, 8, 10e8));
  EXPECT_TRUE(weather.Explains(5, 2, 10e8)) << "of two";
  EXPECT_TRUE(weather.Explains(3, 8, 10e8));
}

TEST(Weather, IsNotWhatStaysForLong) {
  Weather weather;
  weather.Add(0, 0, 11, 1e9, 1);
  EXPECT_EQ(weather.rises(), 0u);
}

TEST(Weather, IsForgotten) {
  Weather weather;
  weather.Add(0, 0, 20, 1e8, 1);
  weather.Add(1, 500, 520, 1e8, 1);
  weather.Forget(parameters.burst_memory + 1);
  EXPECT_EQ(weather.rises(), 1u);
  EXPECT_EQ(weather.ranks(), 1u);
  EXPECT_TRUE(weather.Explains(0, 8, 5e8));
  weather.Forget(parameters.burst_memory + 501);
  EXPECT_FALSE(weather.Explains(0, 8, 5e8));
}

TEST(Weather, IsBounded) {
  Weather weather;
  for (int i = 0; i < 3000; ++i) weather.Add(i, i, i + 10, 1e8, 1);
  EXPECT_LE(weather.rises(), Weather::kMost);
  EXPECT_EQ(weather.ranks(), weather.rises());
}

TEST(Weather, HasAPrice) {
  Weather weather;
  weather.Add(0, 0, 10, 1e8, 5e6);
  weather.Add(1, 50, 80, 1e8, 10e6);
  EXPECT_EQ(weather.first_step(), 0);
  EXPECT_EQ(weather.mean_steps(), 20);
  EXPECT_DOUBLE_EQ(weather.cost_ns(99), (10 * 5e6 + 30 * 10e6) / 100);
}

// `steps` steps of the rank from `first` on stick out.
void Blow(Gusts& gusts, int rank, int64_t first, int steps) {
  for (int64_t step = first; step < first + steps; ++step) {
    gusts.Forget(step);
    gusts.Add(rank, step);
  }
}

TEST(Gusts, ExplainWhatHitsOneAndThenAnother) {
  Gusts gusts;
  Blow(gusts, 0, 100, 10);
  Blow(gusts, 1, 150, 10);
  Blow(gusts, 0, 200, 10);
  gusts.Forget(300);
  EXPECT_TRUE(gusts.Explain(0, 3, 180, 10));
  EXPECT_TRUE(gusts.Explain(0, 3, 90, 20));
  EXPECT_FALSE(gusts.Explain(0, 3, 180, 20)) << "ten more stood out alone";
  EXPECT_FALSE(gusts.Explain(2, 3, 90, 1)) << "it had none";
}

TEST(Gusts, AreNoExcuseForTheOneThatTheyKeepChoosing) {
  Gusts gusts;
  for (int i = 0; i < 12; ++i) Blow(gusts, 2, 100 + 50 * i, 10);
  gusts.Forget(1000);
  EXPECT_FALSE(gusts.Explain(2, 3, 90, 120));
  for (int i = 0; i < 24; ++i) Blow(gusts, i % 2, 1000 + 50 * i, 10);
  gusts.Forget(2190);
  EXPECT_TRUE(gusts.Explain(2, 3, 90, 120)) << "12 of 36";
  gusts.Forget(2000 + 2000);
  EXPECT_FALSE(gusts.Explain(2, 3, 90, 120)) << "forgotten";
}

TEST(Gusts, TheLastOneIsNoneIfItStaysForLong) {
  Gusts gusts;
  Blow(gusts, 0, 100, 10);
  Blow(gusts, 1, 200, 20);
  EXPECT_TRUE(gusts.Explain(1, 3, 190, 20));
  Blow(gusts, 1, 220, 1);
  EXPECT_FALSE(gusts.Explain(1, 3, 190, 21));
}

TEST(Gusts, AreSomeStepsInARow) {
  Gusts gusts;
  for (int i = 0; i < 5; ++i) Blow(gusts, 0, 100 + 10 * i, 2);
  gusts.Forget(200);
  EXPECT_FALSE(gusts.Explain(0, 3, 90, 10)) << "pauses";
  Blow(gusts, 0, 300, 2);
  Blow(gusts, 0, 303, 2);
  gusts.Forget(400);
  EXPECT_TRUE(gusts.Explain(0, 3, 290, 4)) << "with steps between that did not stick out";
}

}  // namespace
}  // namespace taskd::diagnosis
