#include "tests/diagnosis/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "diagnosis/veto.h"

namespace taskd::evaluation {
namespace {

using diagnosis::parameters;
using diagnosis::Parameters;

TEST(Ablation, HasHalfAndTwiceOfAParameter) {
  const auto changes = ChangesOf("learn");
  ASSERT_TRUE(changes.has_value());
  ASSERT_EQ(changes->size(), 2U);
  EXPECT_EQ((*changes)[0].title, "learn 7");
  EXPECT_EQ((*changes)[0].parameters.learn, 7);
  EXPECT_EQ((*changes)[1].parameters.learn, 30);
  EXPECT_EQ((*changes)[1].parameters.vetoes_off, 0U);
  EXPECT_EQ((*ChangesOf("own_dead"))[0].parameters.own_dead, Parameters().own_dead / 2);
}

TEST(Ablation, TakesAValue) {
  const auto changes = ChangesOf("own_dead=0.03");
  ASSERT_TRUE(changes.has_value());
  ASSERT_EQ(changes->size(), 1U);
  EXPECT_EQ((*changes)[0].parameters.own_dead, 0.03);
}

TEST(Ablation, EachNameIsKnownAndNoOther) {
  for (const std::string& name : ParameterNames()) EXPECT_TRUE(ChangesOf(name).has_value()) << name;
  for (const std::string& name : VetoNames()) EXPECT_EQ(ChangesOf(name)->size(), 1U) << name;
  for (const std::string& rule : Rules()) EXPECT_TRUE(ChangesOf(rule).has_value()) << rule;
  for (const char* bad : {"", "learned", "learn=", "learn=few", "learn=nan", "cost=1"}) {
    EXPECT_FALSE(ChangesOf(bad).has_value()) << bad;
  }
}

TEST(Ablation, AVetoThatIsOffDoesNotHold) {
  const diagnosis::Held held = {diagnosis::Veto::kCost};
  EXPECT_TRUE(held.holds());
  parameters = ChangesOf("cost")->front().parameters;
  EXPECT_FALSE(held.holds());
  EXPECT_TRUE(diagnosis::Held{diagnosis::Veto::kDuration}.holds());
  parameters = Parameters();
}

TEST(Ablation, PutsParametersBack) {
  std::vector<int> learned;
  const auto run = [&] {
    learned.push_back(parameters.learn);
    return std::vector<CaseResult>();
  };
  Ablate(*ChangesOf("learn"), run, stderr);
  EXPECT_THAT(learned, ::testing::ElementsAre(15, 7, 30));
  EXPECT_EQ(parameters.learn, 15);
}

}  // namespace
}  // namespace taskd::evaluation
