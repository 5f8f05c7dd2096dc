#include "manager/actions/order_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/deadline.h"

namespace taskd::manager {
namespace {

using policy::Outcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Answers as it is told to, at last for ever with `taken`; what it was asked is written down.
class Receiver final : public OrderReceiver {
 public:
  struct Desk {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<OrderAnswer> answers;
    std::vector<std::string> asked;
    bool holds = false;     // keeps its caller
    bool holds_on = false;  // also after Stop()
    bool stopped = false;
  };
  explicit Receiver(std::shared_ptr<Desk> desk) : desk_(std::move(desk)) {}
  OrderAnswer Send(const policy::Action& action) override { return Answer("send", action); }
  OrderAnswer Withdraw(const policy::Action& action) override { return Answer("withdraw", action); }
  void Stop() override {
    std::lock_guard lock(desk_->mutex);
    desk_->stopped = true;
    desk_->changed.notify_all();
  }

 private:
  OrderAnswer Answer(const char* what, const policy::Action& action) {
    std::unique_lock lock(desk_->mutex);
    desk_->asked.push_back(absl::StrCat(what, " ", action.node_name, " ", action.id));
    desk_->changed.wait(lock, [this] { return !desk_->holds || (desk_->stopped && !desk_->holds_on); });
    if (desk_->answers.empty()) return {Outcome::kTaken, "well"};
    OrderAnswer answer = desk_->answers.front();
    desk_->answers.pop_front();
    return answer;
  }

  const std::shared_ptr<Desk> desk_;
};

// A job of two nodes; node 1 may be accused. What managers keep outlives them.
class OrderSenderTest : public ::testing::Test {
 protected:
  std::shared_ptr<ActionCore> MakeCore() {
    ActionCore::Options options;
    options.policy.on_slow = policy::OnSlow::kOrder;
    options.policy.order_to = {{OrderTo::Kind::kCommand, "/c"}};
    options.save = [this](const std::string& state) {
      std::lock_guard lock(mutex_);
      if (storage_.ok()) kept_ = state;
      return storage_;
    };
    options.report = [this] {
      std::lock_guard lock(mutex_);
      return std::make_shared<const diagnosis::Report>(report_);
    };
    options.look = [](const diagnosis::Report&) {
      policy::View view;
      for (int node = 0; node < 2; ++node) {
        view.nodes.push_back({node, "h", absl::StrCat("n", node), "", {node, node}});
      }
      view.price = {100, 1};
      view.ran_s = 36'000;
      view.slots = 2;
      return view;
    };
    options.on_event = [this](const char* kind, const policy::Action& action) {
      std::lock_guard lock(mutex_);
      events_.push_back(absl::StrCat(kind, " ", Name(action.state)));
    };
    std::string kept;
    {
      std::lock_guard lock(mutex_);
      kept = kept_;
    }
    return std::make_shared<ActionCore>(std::move(options), kept);
  }
  std::unique_ptr<OrderSender> MakeSender(const std::shared_ptr<ActionCore>& core) {
    return std::make_unique<OrderSender>("command", std::make_unique<Receiver>(desk_), core,
                                         std::chrono::milliseconds(1));
  }
  void Accuse(bool open = true) {
    diagnosis::Verdict verdict;
    verdict.id = 7;
    verdict.scope = diagnosis::Scope::kNode;
    verdict.ids = {1};
    verdict.cause = diagnosis::Cause::kCompute;
    verdict.open = open;
    verdict.since_step = 900;
    verdict.cost_ms_per_step = 20;
    verdict.confidence = 0.99;
    std::lock_guard lock(mutex_);
    report_.state = diagnosis::JobState::kSlow;
    report_.step_ms = 100;
    report_.last_step = 1000;
    report_.verdicts = {verdict};
  }
  void SetStorage(absl::Status status) {
    std::lock_guard lock(mutex_);
    storage_ = std::move(status);
  }
  std::vector<std::string> Asked() {
    std::lock_guard lock(desk_->mutex);
    return desk_->asked;
  }
  std::vector<std::string> Events() {
    std::lock_guard lock(mutex_);
    return events_;
  }
  static bool WaitState(const ActionCore& core, policy::State state) {
    return testing::WaitUntil([&] { return core.List().front().state == state; });
  }

  const std::shared_ptr<Receiver::Desk> desk_ = std::make_shared<Receiver::Desk>();
  std::mutex mutex_;
  diagnosis::Report report_;
  absl::Status storage_;
  std::string kept_;
  std::vector<std::string> events_;
};

TEST_F(OrderSenderTest, SendsOnceAndSaysSo) {
  Accuse();
  const auto core = MakeCore();
  auto sender = MakeSender(core);
  core->KeepUp();
  ASSERT_TRUE(WaitState(*core, policy::State::kDone));
  const policy::Action action = core->List().front();
  EXPECT_THAT(Asked(), ElementsAre("send n1 " + action.id));
  ASSERT_THAT(action.orders, SizeIs(1));
  EXPECT_EQ(action.orders[0].text, "well");
  EXPECT_THAT(core->Json(), HasSubstr("\"to\":\"command\""));
  EXPECT_TRUE(testing::WaitUntil([&] { return Events().size() == 2; }));
  EXPECT_THAT(Events(), ElementsAre("action_decided decided", "action_done done"));
  EXPECT_EQ(core->counts().orders_taken, 1u);
  sender.reset();
  const auto next = MakeCore();
  auto next_sender = MakeSender(next);
  next->KeepUp();
  next_sender.reset();
  EXPECT_THAT(Asked(), SizeIs(1)) << "also over a restart";
}

TEST_F(OrderSenderTest, TriesAgainUntilItIsTaken) {
  Accuse();
  desk_->answers = {{Outcome::kSent, "busy"}, {Outcome::kSent, "busy"}, {Outcome::kFailed, "no"}};
  const auto core = MakeCore();
  const auto sender = MakeSender(core);
  core->KeepUp();
  ASSERT_TRUE(WaitState(*core, policy::State::kFailed));
  EXPECT_THAT(Asked(), SizeIs(3));
  EXPECT_EQ(core->List().front().orders[0].text, "no");
  EXPECT_EQ(core->counts().orders_failed, 1u);
  EXPECT_EQ(core->counts().orders_waiting, 0u);
}

TEST_F(OrderSenderTest, AKillBetweenSendAndAnswerSendsTheSameIdAgain) {
  Accuse();
  desk_->holds = true;
  const auto core = MakeCore();
  auto sender = MakeSender(core);
  core->KeepUp();
  ASSERT_TRUE(testing::WaitUntil([&] { return Asked().size() == 1; }));
  EXPECT_EQ(core->counts().orders_waiting, 1u);
  sender.reset();
  desk_->holds = false;
  const auto next = MakeCore();
  const auto next_sender = MakeSender(next);
  ASSERT_TRUE(WaitState(*next, policy::State::kDone));
  ASSERT_THAT(Asked(), SizeIs(2));
  EXPECT_EQ(Asked()[0], Asked()[1]);
}

TEST_F(OrderSenderTest, WhatCannotBeKeptIsNotSent) {
  Accuse();
  SetStorage(absl::ResourceExhaustedError("no space left on device"));
  const auto core = MakeCore();
  const auto sender = MakeSender(core);
  core->KeepUp();
  ASSERT_TRUE(testing::WaitUntil([&] { return !core->List().front().orders.empty(); }));
  core->KeepUp();
  EXPECT_THAT(Asked(), IsEmpty());
  SetStorage(absl::OkStatus());
  ASSERT_TRUE(WaitState(*core, policy::State::kDone));
  EXPECT_THAT(Asked(), SizeIs(1));
  // Full again: what was sent is not repeated.
  SetStorage(absl::ResourceExhaustedError("no space left on device"));
  core->KeepUp();
  EXPECT_THAT(Asked(), SizeIs(1));
}

TEST_F(OrderSenderTest, AReceiverThatHangsForEverIsLeftBehind) {
  Accuse();
  desk_->holds = desk_->holds_on = true;
  const auto core = MakeCore();
  auto sender = MakeSender(core);
  core->KeepUp();
  ASSERT_TRUE(testing::WaitUntil([&] { return Asked().size() == 1; }));
  sender.reset();
  {
    std::lock_guard lock(desk_->mutex);
    desk_->holds = false;
    desk_->changed.notify_all();
  }
  EXPECT_EQ(core->List().front().state, policy::State::kUnderWay);
}

TEST_F(OrderSenderTest, APersonsOrderNeedsNoVerdict) {
  const auto core = MakeCore();
  const auto sender = MakeSender(core);
  EXPECT_EQ(core->Evict(9).status().code(), absl::StatusCode::kNotFound);
  const absl::StatusOr<std::string> action = core->Evict(1);
  ASSERT_TRUE(action.ok()) << action.status();
  EXPECT_THAT(*action, HasSubstr("\"trigger\":\"person\""));
  EXPECT_TRUE(WaitState(*core, policy::State::kDone));
  EXPECT_FALSE(core->Evict(1).ok()) << "once";
}

}  // namespace
}  // namespace taskd::manager
