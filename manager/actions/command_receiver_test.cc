#include "manager/actions/command_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/runtime_dir.h"
#include "common/testing/deadline.h"

namespace taskd::manager {
namespace {

using policy::Outcome;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A command made of a shell's lines; its folder is $0's. Tests own the time of its limit.
class CommandReceiverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *MakeFreshDir();
    action_.id = "0123456789abcdef";
    action_.node = 3;
    action_.node_name = "worker-3";
    action_.verdict = "rank 24 computes \"longer\"";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& lines) const {
    const std::string path = folder_ + "/command";
    EXPECT_TRUE(WriteFileAtomically(path, "#!/bin/sh\ncd " + folder_ + "\n" + lines + "\n").ok());
    EXPECT_EQ(chmod(path.c_str(), 0700), 0);
    return path;
  }
  OrderAnswer Send(const std::string& lines) {
    CommandReceiver receiver(Write(lines), [this] { return now_.load(); });
    return receiver.Send(action_);
  }
  std::string Read(const std::string& name) const { return ReadFile(folder_ + "/" + name, 1 << 20).value_or(""); }
  // Whether the process whose number the command has written runs.
  bool Runs(const std::string& name) const {
    int pid = 0;
    return absl::SimpleAtoi(Read(name), &pid) && kill(pid, 0) == 0 &&
           ReadSystemFile(absl::StrCat("/proc/", pid, "/stat")).find(") Z ") == std::string::npos;
  }
  // Lets the limit pass as soon as the file is there.
  std::thread PassLimitAfter(const std::string& name) {
    return std::thread([this, name] {
      EXPECT_TRUE(testing::WaitUntil([&] { return !Read(name).empty(); }));
      now_ = now_.load() + CommandReceiver::kLimit;
    });
  }

  std::string folder_;
  policy::Action action_;
  std::atomic<std::chrono::steady_clock::time_point> now_{std::chrono::steady_clock::time_point()};
};

TEST_F(CommandReceiverTest, GetsTheActionAndAnswers) {
  const OrderAnswer answer =
      Send("cat > in; echo \"$TASKD_ACTION_ID $TASKD_NODE_NAME\" > variables; echo one; echo; echo drained >&2; echo");
  EXPECT_EQ(answer.outcome, Outcome::kTaken);
  EXPECT_EQ(answer.text, "drained");
  EXPECT_THAT(Read("in"), AllOf(StartsWith("{\"id\":\"0123456789abcdef\""), HasSubstr("\\\"longer\\\"")));
  EXPECT_EQ(Read("variables"), "0123456789abcdef worker-3\n");
}

TEST_F(CommandReceiverTest, ExitCodesAreAnswers) {
  EXPECT_EQ(Send("exit 0").text, "exit code 0");
  EXPECT_EQ(Send("echo busy; exit 75").outcome, Outcome::kSent);
  const OrderAnswer failed = Send("echo 'no such node'; exit 3");
  EXPECT_EQ(failed.outcome, Outcome::kFailed);
  EXPECT_EQ(failed.text, "exit code 3: no such node");
  EXPECT_EQ(Send("kill -9 $$").text, "it was ended by signal 9");
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/command", "no script").ok());
  ASSERT_EQ(chmod((folder_ + "/command").c_str(), 0700), 0);
  EXPECT_EQ(CommandReceiver(folder_ + "/command").Send(action_).text, "exit code 126: it cannot be executed");
}

TEST_F(CommandReceiverTest, AHangingCommandIsKilledWithItsGroup) {
  std::thread clock = PassLimitAfter("child");
  const OrderAnswer answer = Send("sleep 1000 & echo $! > child; echo waiting; wait");
  clock.join();
  EXPECT_EQ(answer.outcome, Outcome::kFailed);
  EXPECT_EQ(answer.text, "it had not ended after 60 s and was killed: waiting");
  EXPECT_TRUE(testing::WaitUntil([&] { return !Runs("child"); }));
}

TEST_F(CommandReceiverTest, AChildThatKeepsThePipeHoldsUpNobody) {
  const OrderAnswer answer = Send("sleep 1000 & echo $! > child; echo done");
  EXPECT_EQ(answer.outcome, Outcome::kTaken);
  EXPECT_EQ(answer.text, "done");
  EXPECT_TRUE(testing::WaitUntil([&] { return !Runs("child"); }));
  // One that has left the group lives on.
  std::filesystem::remove(folder_ + "/child");
  EXPECT_EQ(Send("setsid sh -c 'echo $$ > child; exec sleep 1000' & while [ ! -s child ]; do :; done; echo apart").text,
            "apart");
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Read("child"), &pid));
  EXPECT_EQ(kill(pid, SIGKILL), 0);
}

TEST_F(CommandReceiverTest, AFloodIsKilled) {
  const OrderAnswer answer = Send("yes");
  EXPECT_EQ(answer.outcome, Outcome::kFailed);
  EXPECT_EQ(answer.text, "it printed more than 1048576 bytes and was killed: y");
}

TEST_F(CommandReceiverTest, ClosedStreamsAndUnreadInputDoNotMatter) {
  action_.reason = std::string(1 << 20, 'x');
  EXPECT_EQ(Send("exec >&- 2>&- <&-; sleep 0").outcome, Outcome::kTaken);
}

TEST_F(CommandReceiverTest, StopEndsIt) {
  CommandReceiver receiver(Write("echo x > began; sleep 1000"));
  std::thread stopper([&] {
    EXPECT_TRUE(testing::WaitUntil([&] { return !Read("began").empty(); }));
    receiver.Stop();
  });
  EXPECT_THAT(receiver.Send(action_).text, HasSubstr("when the manager ended"));
  stopper.join();
}

TEST_F(CommandReceiverTest, OneThatOthersCanWriteToIsNotRun) {
  const std::string path = Write("echo x > ran");
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  const OrderAnswer answer = CommandReceiver(path).Send(action_);
  EXPECT_EQ(answer.outcome, Outcome::kFailed);
  EXPECT_THAT(answer.text, HasSubstr("others can write to it"));
  EXPECT_EQ(Read("ran"), "");
}

TEST_F(CommandReceiverTest, GainsNoPrivileges) {
  Send("grep NoNewPrivs /proc/self/status > status");
  EXPECT_THAT(Read("status"), HasSubstr(geteuid() == 0 ? "0" : "1"));
}

}  // namespace
}  // namespace taskd::manager
