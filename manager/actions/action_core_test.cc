#include "manager/actions/action_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of four nodes, of which a verdict may accuse node 2. Tests own the time.
class ActionCoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<ActionCore> Make(policy::OnSlow on_slow = policy::OnSlow::kRehearse) {
    ActionCore::Options options;
    options.policy.on_slow = on_slow;
    options.save = [this](const std::string& state) {
      if (!storage_.ok()) return storage_;
      kept_ = state;
      return absl::OkStatus();
    };
    options.report = [this] { return std::make_shared<const diagnosis::Report>(report_); };
    options.look = [this](const diagnosis::Report&) {
      ++looks_;
      return view_;
    };
    options.on_event = [this](const char* kind, const policy::Action& action) {
      events_.push_back(absl::StrCat(kind, " ", Name(action.decision)));
    };
    options.unix_ns = [this] { return now_ns_; };
    return std::make_unique<ActionCore>(std::move(options), kept_);
  }
  void SetUp() override {
    for (int node = 0; node < 4; ++node) {
      view_.nodes.push_back({node, absl::StrCat("host", node), absl::StrCat("n", node), "", {node, node}});
    }
    view_.price = {100, 1};
    view_.ran_s = 36'000;
    view_.slots = 4;
    report_.state = diagnosis::JobState::kSlow;
    report_.step_ms = 100;
    report_.last_step = 1000;
  }
  void Accuse(int node) {
    diagnosis::Verdict verdict;
    verdict.id = 7;
    verdict.scope = diagnosis::Scope::kNode;
    verdict.ids = {node};
    verdict.cause = diagnosis::Cause::kCompute;
    verdict.open = true;
    verdict.since_step = 900;
    verdict.cost_ms_per_step = 20;
    verdict.confidence = 0.99;
    report_.verdicts = {verdict};
  }

  diagnosis::Report report_;
  policy::View view_;
  absl::Status storage_;
  std::string kept_;
  int64_t now_ns_ = 1'000'000'000'000'000'000;
  int looks_ = 0;
  std::vector<std::string> events_;
};

TEST_F(ActionCoreTest, RehearsesOncePerVerdict) {
  const auto actions = Make();
  actions->KeepUp();
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_EQ(looks_, 0);  // without an open verdict
  Accuse(2);
  actions->KeepUp();
  actions->KeepUp();
  EXPECT_THAT(events_, ElementsAre("action_decided rehearse"));
  EXPECT_EQ(actions->counts().decisions[static_cast<size_t>(policy::Decision::kRehearse)], 1u);
  ASSERT_EQ(actions->List().size(), 1u);
  EXPECT_EQ(actions->List().front().node_name, "n2");
  EXPECT_THAT(*actions->Why(2), HasSubstr("rehearse"));
  EXPECT_THAT(*actions->Why(1), HasSubstr("no open verdict accuses it"));
  EXPECT_EQ(actions->Why(9).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ActionCoreTest, ReportDoesNothing) {
  Accuse(2);
  const auto actions = Make(policy::OnSlow::kReport);
  actions->KeepUp();
  EXPECT_THAT(actions->List(), IsEmpty());
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(kept_, "");
}

TEST_F(ActionCoreTest, GoesOnFromWhatWasKept) {
  Accuse(2);
  Make()->KeepUp();
  const auto next = Make();
  next->KeepUp();
  EXPECT_THAT(events_, ElementsAre("action_decided rehearse"));
  EXPECT_EQ(next->List().size(), 1u);
}

TEST_F(ActionCoreTest, KeepsLaterWhatTheStorageRefused) {
  Accuse(2);
  storage_ = absl::ResourceExhaustedError("no space left on device");
  const auto actions = Make();
  actions->KeepUp();
  EXPECT_EQ(kept_, "");
  EXPECT_THAT(events_, ElementsAre("action_decided rehearse"));
  storage_ = absl::OkStatus();
  actions->KeepUp();
  EXPECT_THAT(kept_, HasSubstr("n2"));
}

TEST_F(ActionCoreTest, UnreadableHistoryPauses) {
  kept_ = "{\"schema\":9}";
  Accuse(2);
  const auto actions = Make();
  actions->KeepUp();
  EXPECT_THAT(actions->Json(), HasSubstr("\"paused\":true"));
  EXPECT_EQ(actions->List().front().refused_by, policy::Refusal::kPaused);
  ASSERT_TRUE(actions->Allow().ok());
  actions->KeepUp();
  EXPECT_EQ(actions->List().front().decision, policy::Decision::kRehearse);
  EXPECT_THAT(events_, ElementsAre("action_decided none", "action_decided rehearse"));
}

TEST_F(ActionCoreTest, APersonPausesAndCancels) {
  const auto actions = Make();
  ASSERT_TRUE(actions->Pause().ok());
  Accuse(2);
  actions->KeepUp();
  EXPECT_EQ(actions->counts().refusals[static_cast<size_t>(policy::Refusal::kPaused)], 1u);
  ASSERT_TRUE(actions->Allow().ok());
  actions->KeepUp();
  const std::string id = actions->List().front().id;
  ASSERT_TRUE(actions->Cancel(id).ok());
  EXPECT_EQ(actions->Cancel(id).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(actions->Cancel("x").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(events_, ElementsAre("action_decided none", "action_decided rehearse", "action_called_off rehearse"));
}

TEST_F(ActionCoreTest, EvictNeedsAReceiver) {
  const auto actions = Make();
  EXPECT_EQ(actions->Evict(2).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(actions->Evict(9).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(actions->List(), IsEmpty());
}

TEST_F(ActionCoreTest, NamesTheNodesWithoutAName) {
  view_.nodes[1].node_name = "";
  view_.nodes[1].refusal = "TASKD_NODE_NAME is not set";
  EXPECT_THAT(Make()->Json(), HasSubstr("node 1 (host1): TASKD_NODE_NAME is not set"));
}

}  // namespace
}  // namespace taskd::manager
