#include "view/actions_section.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::view {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ActionsSectionTest, SaysTheSentenceAndListsTheNewestFirst) {
  std::deque<policy::Action> actions(2);
  actions[0].node = 3;
  actions[0].node_name = "<b>n3";
  actions[0].decision = policy::Decision::kRehearse;
  actions[0].promised = policy::Promise{.saves_ms_per_step = 1, .steps = 10, .saves_rank_s = 7300, .price_rank_s = 100};
  actions[0].reason = "it <i>pays</i>";
  actions[0].orders = {{"command", 0, policy::Outcome::kFailed, "exit code 1: <none>"}};
  actions[1].node = 1;
  actions[1].host = "h1";
  actions[1].refused_by = policy::Refusal::kDoesNotPay;
  const std::string html = ActionsSection(actions);
  EXPECT_THAT(html, HasSubstr(policy::Name(policy::Refusal::kDoesNotPay)));
  EXPECT_THAT(html, HasSubstr("2 decisions, 1 would have paid 2.0"));
  EXPECT_THAT(html, HasSubstr("<td>3 (&lt;b&gt;n3)</td><td class=\"w\">rehearse, decided</td><td>it &lt;i&gt;pays"));
  EXPECT_THAT(html, HasSubstr("<br>command: failed, exit code 1: &lt;none&gt;</td>"));
  EXPECT_LT(html.find("refused: does_not_pay"), html.find("rehearse, decided"));
  EXPECT_THAT(html, Not(HasSubstr("before them")));
}

TEST(ActionsSectionTest, IsShort) {
  EXPECT_THAT(ActionsSection({}), HasSubstr("no decision yet"));
  std::deque<policy::Action> actions(200);
  for (policy::Action& action : actions) action.reason = std::string(5000, 'x');
  EXPECT_THAT(ActionsSection(actions), HasSubstr("and 180 before them"));
  EXPECT_LT(ActionsSection(actions).size(), 30'000u);
}

}  // namespace
}  // namespace taskd::view
