// With real processes: a script that stands in for `ray`, and what it leaves running.
#include "agent/modes/ray_node.h"

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "agent/modes/testing/loop.h"
#include "common/listen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::modes {
namespace {

using ::testing::HasSubstr;

class RayNodeTest : public ::testing::Test {
 protected:
  RayNodeTest() {
    char folder[] = "/tmp/ray_node_test-XXXXXX";
    folder_ = mkdtemp(folder);
    std::ofstream(folder_ + "/ray") << "#!/bin/sh\n"
                                       "[ \"$1\" = stop ] && exit 3\n"
                                       "cp \"$(command -v sleep)\" \"$DIR/raylet\"\n"
                                       "\"$DIR/raylet\" 300 >/dev/null 2>&1 &\n"
                                       "until [ \"$(cat /proc/$!/comm)\" = raylet ]; do sleep 0.01; done\n"
                                       "echo $! > \"$DIR/pid.new\"; mv \"$DIR/pid.new\" \"$DIR/pid\"\n"
                                       "exit $2\n";
    std::filesystem::permissions(folder_ + "/ray", std::filesystem::perms::owner_all);
    process::WorkerGroup::Callbacks callbacks;
    callbacks.on_other_exit = [this](pid_t pid, int status) {
      if (!children_->OnExit(pid, status)) ended_ = node_->WhyEnded(pid);
    };
    group_ = process::WorkerGroup::Create(&loop_, 1'000'000'000, callbacks);
    children_ = std::make_unique<process::ChildProcesses>(group_.get());
  }
  ~RayNodeTest() override {
    node_.reset();
    group_.reset();
    pid_t raylet = 0;
    if (std::ifstream(folder_ + "/pid") >> raylet) kill(raylet, SIGKILL);
    std::filesystem::remove_all(folder_);
  }

  void Make(int code, std::optional<HostPort> head) {
    RayNode::Options options;
    options.start = {"ray", "start", std::to_string(code)};
    options.environment = {{"PATH", folder_ + ":/usr/bin:/bin"}, {"DIR", folder_}};
    options.head = std::move(head);
    node_ = std::make_unique<RayNode>(&loop_, children_.get(), std::move(options));
  }
  // What `ray start` ended with.
  int Start() {
    std::optional<int> code;
    EXPECT_TRUE(node_->Start([&](int ended) { code = ended; }).ok());
    EXPECT_TRUE(RunUntil(loop_, [&] { return code.has_value(); }));
    return code.value_or(-1);
  }

  EventLoop loop_;
  std::string folder_;
  std::unique_ptr<process::WorkerGroup> group_;
  std::unique_ptr<process::ChildProcesses> children_;
  std::unique_ptr<RayNode> node_;
  std::string ended_;
};

TEST_F(RayNodeTest, TheHeadNeedsNobody) {
  Make(7, std::nullopt);
  EXPECT_TRUE(node_->is_head());
  bool reached = false;
  node_->WaitForHead([&] { reached = true; });
  EXPECT_TRUE(reached);
  EXPECT_EQ(Start(), 7);
  EXPECT_FALSE(node_->started());
}

TEST_F(RayNodeTest, OthersWaitForTheHead) {
  absl::StatusOr<UniqueFd> head = ListenTcp({"127.0.0.1", 0}, false);
  ASSERT_TRUE(head.ok());
  Make(0, HostPort{"127.0.0.1", LocalPort(head->get())});
  EXPECT_FALSE(node_->is_head());
  bool reached = false;
  node_->WaitForHead([&] { reached = true; });
  EXPECT_FALSE(reached);
  EXPECT_THAT(node_->Missing(), HasSubstr("Ray's head at 127.0.0.1:"));
  EXPECT_TRUE(RunUntil(loop_, [&] { return reached; }));
}

TEST_F(RayNodeTest, WhatRayLeavesRunningHasToStay) {
  Make(0, std::nullopt);
  ASSERT_EQ(Start(), 0);
  node_->Started();
  EXPECT_TRUE(node_->started());
  EXPECT_EQ(node_->WhyEnded(1), "");
  pid_t raylet = 0;
  std::ifstream(folder_ + "/pid") >> raylet;
  ASSERT_GT(raylet, 1);
  kill(raylet, SIGKILL);
  EXPECT_TRUE(RunUntil(loop_, [&] { return !ended_.empty(); }));
  EXPECT_EQ(ended_, "Ray's raylet has ended by itself");
}

TEST_F(RayNodeTest, Stop) {
  Make(0, std::nullopt);
  bool stopped = false;
  EXPECT_TRUE(node_->Stop([&] { stopped = true; }));
  EXPECT_TRUE(RunUntil(loop_, [&] { return stopped; }));
}

}  // namespace
}  // namespace taskd::modes
