#include "proxy/uplink.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/test_credentials.h"
#include "proxy/fold_sender.h"
#include "proxy/testing/fake_segment.h"
#include "proxy/testing/faulty_line.h"
#include "proxy/testing/temp_dir.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::proxy {
namespace {

using taskd::testing::WaitFor;
using taskd::testing::WaitUntil;
using testing::FakeSegment;
using testing::FaultyLine;
using testing::TempDir;

hello::Hello HelloOf(int rank) {
  hello::Hello hello = {};
  hello.magic = hello::kMagic;
  hello.version = hello::kVersion;
  hello.role = hello::kRoleWorker;
  hello.rank = rank;
  return hello;
}

// A manager that only listens: it answers a hello with everything switched on.
class Listener : public v1::NodeLink::Service {
 public:
  grpc::Status Connect(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::ManagerMessage, v1::NodeMessage>* stream) override {
    v1::NodeMessage message;
    if (!stream->Read(&message) || !message.has_hello()) return grpc::Status::CANCELLED;
    v1::ManagerMessage wanted;
    wanted.mutable_wanted()->set_revision(1);
    v1::KindStates* kinds = wanted.mutable_wanted()->mutable_kinds();
    kinds->set_step(true);
    kinds->set_communication(true);
    v1::ManagerMessage taken;
    taken.mutable_folds_taken()->set_sets(0);
    if (confirms_) stream->Write(taken);
    stream->Write(wanted);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++hellos_;
      changed_.notify_all();
    }
    while (stream->Read(&message)) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.has_applied() || message.has_ranks()) {
        if (message.has_applied()) applied_ = message.applied();
        if (message.has_ranks()) ranks_ = message.ranks();
        changed_.notify_all();
      }
      if (!message.has_folds()) continue;
      sets_.push_back(message.folds());
      taken.mutable_folds_taken()->set_sets(taken.folds_taken().sets() + 1);
      if (confirms_ && !keeps_silent_) stream->Write(taken);
      changed_.notify_all();
      if (hang_up_) {
        hang_up_ = false;
        return grpc::Status::OK;
      }
    }
    return grpc::Status::OK;
  }

  // As a manager does that knows folds which come again; of an earlier release it does not.
  void Confirm() { confirms_ = true; }
  // Confirms nothing more.
  void KeepSilent(bool silent) { keeps_silent_ = silent; }
  // The stream ends after the next set of folds.
  void HangUpAfterTheNext() {
    std::lock_guard<std::mutex> lock(mutex_);
    hang_up_ = true;
  }
  void WaitForHello(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(WaitFor(changed_, lock, [&] { return hellos_ >= count; }));
  }
  // The newest of each, once they are as expected.
  bool WaitForRanks(const std::function<bool(const v1::SwitchApplied&, const v1::RankSet&)>& expected) {
    std::unique_lock<std::mutex> lock(mutex_);
    return WaitFor(changed_, lock, [&] { return applied_ && ranks_ && expected(*applied_, *ranks_); });
  }
  // Everything that came since the last call, once it includes this step.
  std::vector<v1::FoldSet> WaitForStep(int64_t step) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(WaitFor(changed_, lock,
                        [&] {
                          for (const v1::FoldSet& set : sets_) {
                            for (const v1::RankStep& fold : set.steps()) {
                              if (fold.step() == step) return true;
                            }
                          }
                          return false;
                        }))
        << "step " << step << " never came";
    return std::exchange(sets_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::FoldSet> sets_;
  std::optional<v1::SwitchApplied> applied_;
  std::optional<v1::RankSet> ranks_;
  bool hang_up_ = false;
  int hellos_ = 0;
  std::atomic<bool> confirms_{false};
  std::atomic<bool> keeps_silent_{false};
};

class UplinkTest : public ::testing::Test {
 protected:
  explicit UplinkTest(uint64_t fold_interval_ns = 0)
      : node_({.node_rank = 2, .host = "host", .socket = temp_ / "proxy.sock", .disk_limit_mb = 100},
              ProfilingDir(temp_ / "profiling", "task")) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", proto::TestCredentials("of the test"), &port);
    builder.RegisterService(&listener_);
    server_ = builder.BuildAndStart();
    line_ = std::make_unique<FaultyLine>(port);
    Uplink::Options options;
    options.manager = "127.0.0.1:" + std::to_string(line_->port());
    options.security.secret = "of the test";
    options.node_rank = 2;
    options.node = {"host", "pod", "node-7", "boot"};
    options.identity = "host:socket";
    if (fold_interval_ns != 0) options.fold_interval_ns = fold_interval_ns;
    uplink_ = std::make_unique<Uplink>(
        options, &node_,
        Uplink::Callbacks{[this](const WantedKinds& wanted) { node_.SetWanted(wanted); }, [](bool) {},
                          [](uint64_t, const std::string&, const std::string&) {}});
    fake_.AddRing();
  }
  ~UplinkTest() override {
    uplink_->Stop();
    EXPECT_TRUE(node_.Stop().ok());
    server_->Shutdown(std::chrono::system_clock::now());
  }

  void Step(int step) { Step(step, fake_); }
  void Step(int step, FakeSegment& segment) {
    const uint64_t range = ++id_;
    segment.Append(0, {ring::kRecordRangeStart, ++ticks_, range, "step " + std::to_string(step), ring::kKindStep});
    segment.Append(0, {ring::kRecordRangeStart, ++ticks_, ++id_, R"({"groupName": "g","opName": "HcclAllreduce"})",
                       ring::kKindCommunication, ring::kFlagStream, ring::kDomainCommunication});
    segment.Append(0, {ring::kRecordRangeEnd, ++ticks_, id_});
    segment.Append(0, {ring::kRecordRangeEnd, ++ticks_, range});
  }

  TempDir temp_;
  Node node_;
  Listener listener_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<FaultyLine> line_;
  std::unique_ptr<Uplink> uplink_;
  FakeSegment fake_;
  uint64_t ticks_ = 1'000'000'000;
  uint64_t id_ = 0;
};

TEST_F(UplinkTest, SendsFoldsBehindTheirGroupsAndAgainOnANewStream) {
  testing::WriteFile(temp_ / "profiling/task/0/parallel_group.json",
                     R"({"g": {"group_name": "dp", "group_rank": 0, "global_ranks": [0, 8]}})");
  node_.Start();
  ASSERT_TRUE(uplink_->Start().ok());
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  Step(0);
  std::vector<v1::FoldSet> sets = listener_.WaitForStep(0);
  ASSERT_EQ(sets.size(), 1u);
  ASSERT_EQ(sets[0].groups_size(), 1);
  ASSERT_EQ(sets[0].groups(0).groups_size(), 1);
  EXPECT_EQ(sets[0].groups(0).groups(0).name(), "g");
  EXPECT_EQ(sets[0].groups(0).groups(0).label(), "dp");
  EXPECT_THAT(sets[0].groups(0).groups(0).runs(), ::testing::ElementsAre(0, 8, 2));
  ASSERT_EQ(sets[0].steps_size(), 1);
  EXPECT_EQ(sets[0].steps(0).ops_size(), 15);
  EXPECT_EQ(sets[0].dropped(), 0u);

  listener_.HangUpAfterTheNext();
  Step(1);
  sets = listener_.WaitForStep(1);
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].groups_size(), 0) << "sent already";
  EXPECT_EQ(sets[0].steps(0).period_ns(), 4u);

  // The manager hung up with that: the next one is on a new stream.
  listener_.WaitForHello(2);
  Step(2);
  sets = listener_.WaitForStep(2);
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].groups_size(), 1);
}

// Folds that are not the first: until something else is urgent they wait.
class PatientUplinkTest : public UplinkTest {
 protected:
  PatientUplinkTest() : UplinkTest(3'600'000'000'000) {}

  // The steps after the first, which the node has folded and nobody was sent.
  void MakeSteps(int count) {
    node_.Start();
    ASSERT_TRUE(uplink_->Start().ok());
    ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
    Step(0);
    listener_.WaitForStep(0);
    for (int step = 1; step <= count; ++step) {
      Step(step);
      ASSERT_TRUE(WaitUntil([&] { return node_.has_folds() && node_.Reports().at(0).step == step; }));
    }
  }
};

TEST_F(PatientUplinkTest, ShortStepsShareAMessage) {
  MakeSteps(3);
  FakeSegment second;
  second.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(1), second.Fd()).ok());
  const std::vector<v1::FoldSet> sets = listener_.WaitForStep(3);
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].steps_size(), 3);
}

TEST_F(PatientUplinkTest, WhatWaitsIsToldAtTheEnd) {
  MakeSteps(2);
  Step(3);
  EXPECT_TRUE(node_.Stop().ok());
  uplink_->Stop();
  int steps = 0;
  for (const v1::FoldSet& set : listener_.WaitForStep(3)) steps += set.steps_size();
  EXPECT_EQ(steps, 3);
}

TEST_F(UplinkTest, FoldsThatABrokenStreamDoesNotTakeComeOnTheNextOne) {
  constexpr int kSteps = static_cast<int>(Node::kMaxFolds);
  node_.Start();
  node_.SetWanted({kAllKindsMask, 1});
  FakeSegment second;
  second.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  ASSERT_TRUE(node_.Attach(HelloOf(1), second.Fd()).ok());
  for (int step = 0; step < kSteps; ++step) {
    Step(step, fake_);
    Step(step, second);
  }
  // A stream that takes so many messages and breaks.
  std::multiset<std::pair<int, int64_t>> taken;
  FoldSender sender(&node_);
  const auto write = [&](int most) {
    sender.Begin();
    const bool written = sender.Write([&](const v1::NodeMessage& message) {
      if (most-- == 0) return false;
      for (const v1::RankStep& fold : message.folds().steps()) taken.emplace(fold.rank(), fold.step());
      return true;
    });
    sender.End();
    return written;
  };
  bool broke = false;
  for (int stream = 0; stream < 30 && taken.size() < 2 * kSteps; ++stream) {
    node_.WaitForChange(node_.versions().urgent, 2'000, true);
    broke = !write(stream) || broke;
  }
  EXPECT_EQ(taken.size(), size_t{2 * kSteps});
  EXPECT_TRUE(broke);
  EXPECT_EQ(std::set(taken.begin(), taken.end()).size(), taken.size()) << "each once";
}

// gRPC called it written, and nobody read it.
TEST_F(UplinkTest, WhatLayOnTheWireWhenTheConnectionBrokeComesAgain) {
  listener_.Confirm();
  node_.Start();
  ASSERT_TRUE(uplink_->Start().ok());
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  Step(0);
  std::multiset<int64_t> came;
  const auto take = [&](int64_t newest) {
    for (const v1::FoldSet& set : listener_.WaitForStep(newest)) {
      EXPECT_EQ(set.dropped(), 0u);
      for (const v1::RankStep& fold : set.steps()) came.insert(fold.step());
    }
  };
  take(0);
  int64_t step = 0;
  for (int hello = 2; hello < 6; ++hello) {
    line_->Swallow();
    const size_t before = line_->swallowed_bytes();
    for (int i = 0; i < 5; ++i) Step(static_cast<int>(++step));
    // Folds go before anything else that is new.
    ASSERT_TRUE(WaitUntil([&] { return line_->swallowed_bytes() > before + 500; }));
    line_->Reset();
    listener_.WaitForHello(hello);
    take(step);
  }
  EXPECT_EQ(came.size(), static_cast<size_t>(step) + 1) << "each once";
  EXPECT_EQ(std::set(came.begin(), came.end()).size(), came.size());
}

// It had come, but the manager's word of that had not: the manager tells by the number.
TEST_F(UplinkTest, WhatWasNotConfirmedComesAgainWithItsNumber) {
  listener_.Confirm();
  listener_.KeepSilent(true);
  node_.Start();
  ASSERT_TRUE(uplink_->Start().ok());
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  Step(0);
  const std::vector<v1::FoldSet> first = listener_.WaitForStep(0);
  listener_.KeepSilent(false);
  line_->Reset();
  const std::vector<v1::FoldSet> again = listener_.WaitForStep(0);
  ASSERT_EQ(first.back().steps_size(), 1);
  ASSERT_EQ(again.front().steps_size(), 1);
  EXPECT_GT(first.back().steps(0).number(), 0u);
  EXPECT_EQ(again.front().steps(0).number(), first.back().steps(0).number());
}

// A manager that takes and does not confirm: what is kept has a bound, and what is beyond it is counted.
TEST_F(UplinkTest, WhatIsNotConfirmedHasABound) {
  constexpr int kSteps = static_cast<int>(FoldSender::kMostUnconfirmed + Node::kMaxFolds) - 5;
  constexpr size_t kTaken = 3;
  int step = 0;
  node_.Start();
  node_.SetWanted({kAllKindsMask, 1});
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  FoldSender sender(&node_);
  std::vector<int64_t> written;
  uint64_t dropped = 0;
  const auto write = [&] {
    return sender.Write([&](const v1::NodeMessage& message) {
      for (const v1::RankStep& fold : message.folds().steps()) written.push_back(fold.step());
      dropped = message.folds().dropped();
      return true;
    });
  };
  sender.Begin();
  sender.Taken(0);
  for (size_t sets = 1; sets <= FoldSender::kMostUnconfirmed; ++sets) {
    ASSERT_TRUE(sender.has_room());
    Step(step++);
    ASSERT_TRUE(WaitUntil([&] { return write() && written.size() == sets; }));
  }
  EXPECT_FALSE(sender.has_room());
  while (step < kSteps) Step(step++);
  ASSERT_TRUE(WaitUntil([&] { return node_.Reports().at(0).step == kSteps - 1; }));
  ASSERT_TRUE(write());
  EXPECT_EQ(written.size(), FoldSender::kMostUnconfirmed);
  sender.Taken(kTaken);
  EXPECT_TRUE(sender.has_room());
  sender.End();
  written.clear();
  sender.Begin();
  // Those that came since fill the node's room; of those that come again the oldest are dropped.
  ASSERT_TRUE(WaitUntil([&] { return write() && !written.empty() && written.back() == kSteps - 1; }));
  EXPECT_GE(written.size(), Node::kMaxFolds);
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(written.size() + dropped, static_cast<size_t>(kSteps) - kTaken);
}

// The answer of the others does not wait for a rank with MSPTI; its own comes with the reports.
TEST_F(UplinkTest, ContractARankThatWaitsForMsptiAnswersLater) {
  FakeSegment with_mspti;
  with_mspti.header().source_code = 1400;
  with_mspti.header().source_domains = ring::kSourceAnswered;
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake_.Fd()).ok());
  ASSERT_TRUE(node_.Attach(HelloOf(1), with_mspti.Fd()).ok());
  ASSERT_TRUE(uplink_->Start().ok());
  EXPECT_TRUE(listener_.WaitForRanks([](const v1::SwitchApplied& applied, const v1::RankSet& ranks) {
    return applied.ranks_size() == 1 && applied.ranks(0).rank() == 0 &&
           applied.ranks(0).state() == v1::RankAnswer::APPLIED && ranks.ranks_size() == 2 &&
           ranks.ranks(0).applied_revision() == 1 && ranks.ranks(1).applied_revision() == 0 &&
           ranks.ranks(1).attached();
  }));
  const uint32_t both = ring::kSourceDefault | ring::kSourceCommunication;
  with_mspti.header().source_code = 1420;
  with_mspti.header().source_error = 2;
  with_mspti.header().source_domains = both | ring::kSourceAnswered;
  EXPECT_TRUE(listener_.WaitForRanks([](const v1::SwitchApplied&, const v1::RankSet& ranks) {
    return ranks.ranks(1).failed_revision() == 1 &&
           ranks.ranks(1).reason() == "not applied: another profiler is subscribed to MSPTI (2); it is tried again";
  }));
  with_mspti.header().source_code = ring::SourceCodeOf(both);
  with_mspti.header().source_error = 0;
  EXPECT_TRUE(listener_.WaitForRanks([](const v1::SwitchApplied&, const v1::RankSet& ranks) {
    return ranks.ranks(1).applied_revision() == 1 && ranks.ranks(1).failed_revision() == 0 &&
           ranks.ranks(1).reason().empty() && ranks.ranks(1).applied().step();
  }));
}

}  // namespace
}  // namespace taskd::proxy
