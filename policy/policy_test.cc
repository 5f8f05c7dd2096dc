#include "policy/policy.h"

#include <functional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policy/render.h"

namespace taskd::policy {
namespace {

using diagnosis::Cause;
using diagnosis::Scope;
using diagnosis::Verdict;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;
constexpr int64_t kBegin = 1'790'000'000 * kSecond;

Verdict SlowNode(int node, uint64_t id) {
  Verdict verdict;
  verdict.id = id;
  verdict.ids = {node * 8 + 1};
  verdict.cause = Cause::kCompute;
  verdict.since_step = 100;
  verdict.cost_ms_per_step = 10;
  verdict.cost_interval_ms = {9, 11};
  verdict.confidence = 0.98;
  verdict.nodes = {{node, "h" + std::to_string(node), "", "n" + std::to_string(node)}};
  verdict.text = "rank computes longer";
  return verdict;
}

// Four nodes of eight ranks, steps of 100 ms, two hours in; one node costs a tenth of each step and a restart an hour of
// one rank.
struct Job {
  Options options;
  diagnosis::Report report;
  View view;
  Policy::Kept kept;

  Job() {
    options.on_slow = OnSlow::kOrder;
    report.state = diagnosis::JobState::kSlow;
    report.last_step = 1000;
    report.step_ms = 100;
    report.verdicts = {SlowNode(3, 7)};
    for (int node = 0; node < 4; ++node) {
      const std::string number = std::to_string(node);
      view.nodes.push_back({node, "h" + number, "n" + number, "", {node * 8, node * 8 + 7}});
    }
    view.unix_ns = kBegin;
    view.price = {3600, 2};
    view.ran_s = 7200;
    view.attempt_s = 7200;
    view.slots = 32;
  }
  Verdict& verdict() { return report.verdicts[0]; }
  const View& Now() {
    view.report = &report;
    return view;
  }
  Policy Make() const { return Policy(options, 42, kept); }
};

TEST(PolicyTest, AVerdictThatPaysIsAnOrder) {
  Job job;
  Policy policy = job.Make();
  const std::vector<std::string> changed = policy.Advance(job.Now());
  ASSERT_THAT(changed, SizeIs(1));
  const Action& action = *policy.Find(changed[0]);
  EXPECT_EQ(action.decision, Decision::kOrder);
  EXPECT_EQ(action.refused_by, std::nullopt);
  EXPECT_EQ(action.node, 3);
  EXPECT_EQ(action.node_name, "n3");
  EXPECT_EQ(action.host, "h3");
  EXPECT_EQ(action.ranks, (std::array<int, 2>{24, 31}));
  // 72,000 steps of 10 ms in 32 ranks.
  EXPECT_EQ(action.promised, (Promise{10, 72000, 23040, 3600}));
  EXPECT_EQ(
      action.reason,
      "node 3 (n3) costs 10 ms of each step, in the 72000 steps of the 2 h that remain 6.40 rank-hours; a restart "
      "costs 1.00 rank-hours (mean of 2)");
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty()) << "once for each verdict";
}

struct Case {
  Refusal refusal;
  std::function<void(Job&)> change;
  const char* reason;  // a part of it
};

class RefusalTest : public ::testing::TestWithParam<Case> {};

TEST_P(RefusalTest, IsFoundAndSaidInWords) {
  Job job;
  GetParam().change(job);
  Policy policy = job.Make();
  EXPECT_THAT(*policy.Why(3, job.Now()),
              AllOf(HasSubstr(GetParam().reason), HasSubstr(absl::StrCat("refused: ", Name(GetParam().refusal)))));
  const std::vector<std::string> changed = policy.Advance(job.Now());
  if (GetParam().refusal == Refusal::kNotOpenLong) {
    EXPECT_THAT(changed, IsEmpty()) << "most verdicts of a noisy job are short: they are no decisions";
    return;
  }
  ASSERT_THAT(changed, SizeIs(1));
  const Action& action = *policy.Find(changed[0]);
  EXPECT_EQ(action.decision, Decision::kNone);
  ASSERT_TRUE(action.refused_by.has_value());
  EXPECT_STREQ(Name(*action.refused_by), Name(GetParam().refusal));
  EXPECT_THAT(action.reason, HasSubstr(GetParam().reason));
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty()) << "the same refusal is no news";
}

INSTANTIATE_TEST_SUITE_P(
    Each, RefusalTest,
    ::testing::Values(
        Case{Refusal::kNotOpenLong, [](Job& j) { j.verdict().since_step = 951; }, "open for 49 steps"},
        Case{Refusal::kCannotSay, [](Job& j) { j.report.state = diagnosis::JobState::kUnknown; }, "cannot be said"},
        Case{Refusal::kScope, [](Job& j) { j.verdict().scope = Scope::kGroup; }, "about a group"},
        Case{Refusal::kCause, [](Job& j) { j.verdict().cause = Cause::kFabric; }, "the cause fabric"},
        Case{Refusal::kCause, [](Job& j) { j.verdict().cause = Cause::kUnknown; }, "the cause unknown"},
        Case{Refusal::kConfidence, [](Job& j) { j.verdict().confidence = 0.94; }, "0.94"},
        Case{Refusal::kConfidence, [](Job& j) { j.verdict().confidence = std::nan(""); }, "confidence"},
        Case{Refusal::kCost, [](Job& j) { j.verdict().cost_ms_per_step = 4.9; }, "4.9 ms of a step of 100 ms"},
        Case{Refusal::kCost, [](Job& j) { j.report.step_ms = 0; }, "5 % is asked for"},
        Case{Refusal::kHeld,
             [](Job& j) {
               j.kept.evicted = {{"a", "n3", kBegin - 9 * kHour}};
             },
             "before in this job"},
        Case{Refusal::kNoNodeName,
             [](Job& j) {
               j.view.nodes[3].node_name = "";
               j.view.nodes[3].refusal = "TASKD_NODE_NAME is not set";
             },
             "TASKD_NODE_NAME is not set"},
        Case{Refusal::kNoSpare, [](Job& j) { j.options.on_slow = OnSlow::kReplace; }, "no spare"},
        Case{Refusal::kTooFewNodes, [](Job& j) { j.options.on_slow = OnSlow::kDrop; }, "needs 4"},
        Case{Refusal::kTooFewNodes,
             [](Job& j) {
               j.options.on_slow = OnSlow::kDrop;
               j.view.least_nodes = 3;
               j.view.nodes.erase(j.view.nodes.begin());  // an elastic job has shrunk
             },
             "needs 3"},
        Case{Refusal::kDoesNotPay, [](Job& j) { j.options.remaining_h = 0; }, "0 steps"},
        Case{Refusal::kDoesNotPay, [](Job& j) { j.options.remaining_h = 2; }, "0 steps"},
        Case{Refusal::kDoesNotPay, [](Job& j) { j.view.price.rank_s = 23040; }, "a restart costs 6.40"},
        Case{Refusal::kPaused, [](Job& j) { j.kept.paused = true; }, "taskd act allow"},
        Case{Refusal::kDidNotHelp, [](Job& j) { j.kept.did_not_help = true; }, "did not help"},
        Case{Refusal::kBudget,
             [](Job& j) {
               j.kept.evicted = {{"a", "n1", kBegin - kHour + 1}};
             },
             "1 of at most 1"},
        Case{Refusal::kBudget,
             [](Job& j) {
               j.kept.evicted = {{"a", "n1", kBegin + kHour}};
             },
             "1 of at most 1"},
        Case{Refusal::kBudget,
             [](Job& j) {
               for (const char* name : {"a", "b", "c"}) j.kept.evicted.push_back({name, name, kBegin - 9 * kHour});
             },
             "as many as a job may have"}),
    [](const ::testing::TestParamInfo<Case>& info) { return absl::StrCat(Name(info.param.refusal), "_", info.index); });

TEST(PolicyTest, NodeZeroServesTheStore) {
  for (const auto& [mode, refused] :
       {std::pair(OnSlow::kOrder, false), std::pair(OnSlow::kReplace, true), std::pair(OnSlow::kDrop, true)}) {
    Job job;
    job.options.on_slow = mode;
    job.view.spares = 1;
    job.view.least_nodes = 1;
    job.report.verdicts = {SlowNode(0, 7)};
    Policy policy = job.Make();
    EXPECT_EQ(policy.Find(policy.Advance(job.Now())[0])->refused_by == Refusal::kNodeZero, refused) << Name(mode);
  }
}

TEST(PolicyTest, AVerdictOnSeveralNodesIsAboutTheJob) {
  Job job;
  job.verdict().ids = {8, 16};
  job.verdict().nodes = {{1, "h1", "", "n1"}, {2, "h2", "", "n2"}};
  Policy policy = job.Make();
  const Action& action = *policy.Find(policy.Advance(job.Now())[0]);
  EXPECT_EQ(action.refused_by, Refusal::kScope);
  EXPECT_THAT(action.reason, HasSubstr("names 2 nodes"));
  EXPECT_EQ(action.node, -1);
}

TEST(PolicyTest, ThresholdsAreReachedByTheirValue) {
  Job job;
  job.verdict().since_step = 950;
  job.verdict().confidence = 0.95;
  job.verdict().cost_ms_per_step = 5;
  Policy policy = job.Make();
  EXPECT_EQ(policy.Find(policy.Advance(job.Now())[0])->decision, Decision::kOrder);
}

TEST(PolicyTest, RemainingIsGivenOrAsLongAsBefore) {
  Job job;
  EXPECT_EQ(job.Make().RemainingS(job.Now()), 7200);
  job.view.ran_s = 300 * 3600;
  job.view.attempt_s = 200 * 3600;
  EXPECT_EQ(job.Make().RemainingS(job.Now()), 24 * 3600);
  job.options.remaining_h = 201;
  EXPECT_EQ(job.Make().RemainingS(job.Now()), 3600);
  job.options.remaining_h = 1;
  EXPECT_EQ(job.Make().RemainingS(job.Now()), 0);
}

TEST(PolicyTest, ARefusalIsJudgedAgainWhenWhatItDependsOnChanges) {
  Job job;
  job.view.price.rank_s = 1e9;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  job.view.ran_s *= 2;
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
  job.view.price.rank_s = 100;
  EXPECT_THAT(policy.Advance(job.Now()), ::testing::ElementsAre(id)) << "the same action, another answer";
  EXPECT_EQ(policy.Find(id)->decision, Decision::kOrder);
  EXPECT_EQ(policy.Find(id)->refused_by, std::nullopt);
}

TEST(PolicyTest, OfTwoAccusedAtOnceOneIsWithinTheBudget) {
  Job job;
  job.report.verdicts = {SlowNode(3, 7), SlowNode(2, 8)};
  Policy policy = job.Make();
  const std::vector<std::string> changed = policy.Advance(job.Now());
  ASSERT_THAT(changed, SizeIs(2));
  EXPECT_EQ(policy.Find(changed[0])->decision, Decision::kOrder);
  EXPECT_EQ(policy.Find(changed[1])->refused_by, Refusal::kBudget);
  job.view.unix_ns += kHour;
  EXPECT_THAT(policy.Advance(job.Now()), SizeIs(1));
  EXPECT_EQ(policy.Find(changed[1])->decision, Decision::kOrder);
}

TEST(PolicyTest, AnOrderIsCalledOffWhenItsVerdictClears) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  policy.SetOrder(id, {"nvrx:/d", kBegin, Outcome::kTaken, "written"}, 1);
  EXPECT_EQ(policy.Find(id)->state, State::kDone);
  job.verdict().open = false;
  job.verdict().unjudged = true;
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty()) << "marks were switched off: nobody knows";
  job.verdict().unjudged = false;
  EXPECT_THAT(policy.Advance(job.Now()), SizeIs(1));
  EXPECT_EQ(policy.Find(id)->state, State::kCalledOff);
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
  EXPECT_THAT(policy.kept().evicted, IsEmpty()) << "the node was not evicted, and may be named again";
}

TEST(PolicyTest, WhatACommandHasDoneStaysDone) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  EXPECT_EQ(policy.NextOrder("command")->id, id);
  policy.SetOrder(id, {"command", kBegin, Outcome::kSent, "again later"}, 2);
  EXPECT_FALSE(policy.NextOrder("command")->withdraw) << "until it is taken";
  policy.SetOrder(id, {"command", kBegin, Outcome::kTaken, "drained"}, 2);
  EXPECT_EQ(policy.NextOrder("command"), std::nullopt);
  policy.SetOrder(id, {"nvrx", kBegin, Outcome::kTaken, "written"}, 2);
  EXPECT_THAT(*policy.Why(3, job.Now()), HasSubstr("order, done: "));
  EXPECT_THAT(*policy.Why(3, job.Now()), HasSubstr("command: taken, drained"));
  job.verdict().open = false;
  EXPECT_THAT(policy.Advance(job.Now()), SizeIs(1));
  EXPECT_TRUE(policy.NextOrder("nvrx")->withdraw);
  EXPECT_EQ(policy.NextOrder("command"), std::nullopt);
  policy.SetOrder(id, {"nvrx", kBegin, Outcome::kTaken, "removed", true}, 2);
  EXPECT_EQ(policy.NextOrder("nvrx"), std::nullopt);
  EXPECT_EQ(policy.Find(id)->state, State::kCalledOff);
  // The verdict flaps: the node is not drained again.
  job.report.verdicts = {SlowNode(3, 9)};
  job.view.unix_ns += 2 * kHour;
  EXPECT_EQ(policy.Find(policy.Advance(job.Now())[0])->refused_by, Refusal::kHeld);
  EXPECT_TRUE(policy.Cancel(id, kBegin).ok()) << "a person may have it drained again";
  EXPECT_EQ(policy.Cancel(id, kBegin).code(), absl::StatusCode::kFailedPrecondition);
  policy.Advance(job.Now());
  EXPECT_EQ(policy.kept().actions.back().decision, Decision::kOrder);
}

TEST(PolicyTest, AnOrderThatIsNotTakenHoldsUpNoOther) {
  Job job;
  job.options.evictions = {4, 1, 4};
  Policy policy = job.Make();
  const std::string first = policy.Advance(job.Now())[0];
  policy.SetOrder(first, {"nvsentinel", kBegin, Outcome::kSent, "node 3 is not connected"}, 1);
  job.report.verdicts.push_back(SlowNode(2, 8));
  const std::string second = policy.Advance(job.Now())[0];
  EXPECT_EQ(policy.NextOrder("nvsentinel")->id, second);
  policy.SetOrder(second, {"nvsentinel", kBegin + 1, Outcome::kSent, "again"}, 1);
  EXPECT_EQ(policy.NextOrder("nvsentinel")->id, first);
  policy.SetOrder(first, {"nvsentinel", kBegin + 2, Outcome::kSent, "node 3 is not connected"}, 1);
  EXPECT_EQ(policy.NextOrder("nvsentinel")->id, second);
}

TEST(PolicyTest, ASuccessorThatMayNotOrderSendsNothing) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  policy.SetOrder(id, {"nvrx", kBegin, Outcome::kSent, ""}, 1);
  job.kept = policy.kept();
  job.options.on_slow = OnSlow::kRehearse;
  Policy next = job.Make();
  EXPECT_EQ(next.NextOrder("nvrx"), std::nullopt);
  const std::string asked = next.Evict(1, job.Now())->id;
  EXPECT_EQ(next.NextOrder("nvrx")->id, asked) << "a person asks for an order";
  next.SetOrder(asked, {"nvrx", kBegin, Outcome::kTaken, "written"}, 1);
  ASSERT_TRUE(next.Cancel(id, kBegin).ok());
  EXPECT_TRUE(next.NextOrder("nvrx")->withdraw) << "it may have been sent";
}

TEST(PolicyTest, AnOrderStaysWhenTheNodeHasLeft) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  job.verdict().open = false;
  job.verdict().left = true;
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
  EXPECT_EQ(policy.Find(id)->state, State::kDecided);
  // It comes back and is slow again.
  job.report.verdicts = {SlowNode(3, 9)};
  job.view.unix_ns += 2 * kHour;
  EXPECT_EQ(policy.Find(policy.Advance(job.Now())[0])->refused_by, Refusal::kHeld);
}

TEST(PolicyTest, ARehearsalStaysWhatItWas) {
  Job job;
  job.options.on_slow = OnSlow::kRehearse;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  EXPECT_EQ(policy.Find(id)->decision, Decision::kRehearse);
  job.verdict().open = false;
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
  EXPECT_EQ(policy.Find(id)->state, State::kDecided);
}

TEST(PolicyTest, OrdersMakeTheState) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  policy.SetOrder(id, {"a", 1, Outcome::kSent, ""}, 2);
  EXPECT_EQ(policy.Find(id)->state, State::kUnderWay);
  policy.SetOrder(id, {"a", 2, Outcome::kTaken, ""}, 2);
  EXPECT_EQ(policy.Find(id)->state, State::kUnderWay);
  policy.SetOrder(id, {"b", 3, Outcome::kFailed, "no"}, 2);
  EXPECT_EQ(policy.Find(id)->state, State::kDone);
  EXPECT_THAT(policy.Find(id)->orders, SizeIs(2));
  policy.SetOrder(id, {"a", 4, Outcome::kFailed, "no"}, 2);
  EXPECT_EQ(policy.Find(id)->state, State::kFailed);
  EXPECT_THAT(policy.kept().evicted, IsEmpty()) << "nobody has taken the node out";
}

TEST(PolicyTest, FlappingVerdictsAndManyVerdictsStayBounded) {
  Job job;
  Policy policy = job.Make();
  std::set<std::string> orders;
  for (uint64_t id = 10; id < 1010; ++id) {
    job.report.verdicts = {SlowNode(3, id)};
    job.view.unix_ns += 4 * kSecond;
    policy.Advance(job.Now());
    job.verdict().open = false;
    job.verdict().left = true;
    policy.Advance(job.Now());
  }
  for (const Action& action : policy.kept().actions) {
    if (action.decision == Decision::kOrder) orders.insert(action.id);
  }
  EXPECT_THAT(orders, SizeIs(1)) << "and it outlives the refusals";
  EXPECT_THAT(policy.kept().actions, SizeIs(Policy::kMaxActions));
}

TEST(PolicyTest, OpenVerdictsDoNotDriveEachOtherOut) {
  Job job;
  job.options.when.confidence = 1;
  job.report.verdicts.clear();
  for (uint64_t id = 1; id <= 300; ++id) job.report.verdicts.push_back(SlowNode(3, id));
  Policy policy = job.Make();
  EXPECT_THAT(policy.Advance(job.Now()), SizeIs(Policy::kMaxActions));
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
}

TEST(PolicyTest, ASuccessorGoesOnFromWhatWasKept) {
  Job job;
  Policy policy = job.Make();
  const std::string id = policy.Advance(job.Now())[0];
  policy.SetOrder(id, {"nvrx:/d", kBegin, Outcome::kSent, "written"}, 2);
  absl::StatusOr<Policy::Kept> kept = ReadKept(RenderKept(policy.kept()));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, policy.kept());
  job.kept = *kept;
  Policy next = job.Make();
  EXPECT_THAT(next.Advance(job.Now()), IsEmpty()) << "no verdict is decided twice";
}

TEST(PolicyTest, ARankCanOnlyAccuseItself) {
  // Whatever a verdict's text and evidence say, the action is about the node that has its rank.
  Job job;
  job.verdict().text = "rank 1 (node 0) is slow; node_name n0";
  job.verdict().evidence = {{.feature = "n0", .value = 1e9}};
  job.verdict().alternatives = {{.scope = Scope::kRank, .ids = {1}, .links = {}, .probability = 0.9}};
  Policy policy = job.Make();
  const Action& action = *policy.Find(policy.Advance(job.Now())[0]);
  EXPECT_EQ(action.node, 3);
  EXPECT_EQ(action.node_name, "n3");
}

TEST(PolicyTest, APersonNeedsNoVerdict) {
  Job job;
  job.report.verdicts.clear();
  job.kept.paused = true;
  Policy policy = job.Make();
  EXPECT_THAT(*policy.Why(1, job.Now()), HasSubstr("no open verdict accuses it"));
  const absl::StatusOr<Action> action = policy.Evict(1, job.Now());
  ASSERT_TRUE(action.ok()) << action.status();
  EXPECT_EQ(action->trigger, Trigger::kPerson);
  EXPECT_EQ(action->decision, Decision::kOrder);
  EXPECT_EQ(policy.Evict(1, job.Now()).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(policy.Evict(9, job.Now()).status().code(), absl::StatusCode::kNotFound);
  job.view.nodes[2].node_name = "";
  EXPECT_EQ(policy.Evict(2, job.Now()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(policy.Cancel(action->id, kBegin).ok());
  EXPECT_EQ(policy.Cancel(action->id, kBegin).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(policy.Cancel("none", kBegin).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(policy.Evict(1, job.Now()).ok()) << "what was called off can be asked for again";
}

TEST(PolicyTest, ReportDecidesNothing) {
  Job job;
  job.options.on_slow = OnSlow::kReport;
  Policy policy = job.Make();
  EXPECT_THAT(policy.Advance(job.Now()), IsEmpty());
  EXPECT_THAT(*policy.Why(3, job.Now()), HasSubstr("--on-slow report"));
  EXPECT_EQ(policy.Evict(3, job.Now()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PolicyTest, AWeekOfRehearsalIsOneSentence) {
  Job job;
  job.options.on_slow = OnSlow::kRehearse;
  job.view.price.rank_s = 180;
  Policy policy = job.Make();
  EXPECT_EQ(Summary(policy.kept().actions), "no decision yet");
  policy.Advance(job.Now());
  job.view.unix_ns += 2 * kHour;
  job.report.verdicts = {SlowNode(2, 8)};
  policy.Advance(job.Now());
  job.view.price.rank_s = 1e6;
  job.report.verdicts = {SlowNode(1, 9)};
  policy.Advance(job.Now());
  EXPECT_EQ(Summary(policy.kept().actions), "3 decisions, 2 would have paid 13 rank-hours, 1 refused: does_not_pay");
}

}  // namespace
}  // namespace taskd::policy
