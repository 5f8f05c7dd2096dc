// The side of the launcher; what the front itself does with real mpiruns is in tests/e2e/test_modes_mpi.py.
#include "agent/modes/mpi/mpirun_front.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <tuple>

#include "agent/modes/testing/loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::modes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MpirunFrontTest : public ::testing::Test {
 protected:
  MpirunFrontTest() {
    char folder[] = "/tmp/front_test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~MpirunFrontTest() override {
    front_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Create(bool is_launcher) {
    auto front = MpirunFront::Create(
        &loop_, folder_ + "/mpi", "/bin/true", is_launcher,
        [this](uint32_t number, bool ended, int code) { calls_.emplace_back(number, ended, code); });
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
  }

  // As a front does, without blocking the loop.
  UniqueFd Call(const std::string& words) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::map<std::string, std::string> environment;
    front_->AddTo(&environment);
    std::strncpy(address.sun_path, environment["TASKD_MPIRUN_SOCKET"].c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    Send(fd, words);
    return fd;
  }
  static void Send(const UniqueFd& fd, const std::string& words) {
    EXPECT_EQ(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  }
  // The next line of an answer; "" if the other end has closed.
  std::string Line(const UniqueFd& fd) {
    std::string line;
    bool closed = false;
    EXPECT_TRUE(RunUntil(loop_, [&] {
      char c;
      ssize_t got;
      while (line.find('\n') == std::string::npos && (got = read(fd.get(), &c, 1)) >= 0) {
        if (got == 0) return closed = true;
        line += c;
      }
      return line.find('\n') != std::string::npos;
    }));
    return line;
  }
  bool WaitForCalls(size_t calls) {
    return RunUntil(loop_, [&] { return calls_.size() >= calls; });
  }

  EventLoop loop_;
  std::string folder_;
  std::unique_ptr<MpirunFront> front_;
  std::vector<std::tuple<uint32_t, bool, int>> calls_;
};

TEST_F(MpirunFrontTest, LauncherSeesEachCall) {
  Create(true);
  UniqueFd first = Call("start\n");
  EXPECT_EQ(Line(first), "1\n");
  UniqueFd second = Call("start\n");
  EXPECT_EQ(Line(second), "2\n");
  Send(second, "ended 7\n");
  ASSERT_TRUE(WaitForCalls(3));
  Send(first, "ended 0\nended 9\n");
  ASSERT_TRUE(WaitForCalls(4));
  EXPECT_THAT(calls_, ElementsAre(std::tuple(1, false, 0), std::tuple(2, false, 0), std::tuple(2, true, 7),
                                  std::tuple(1, true, 0)));
}

TEST_F(MpirunFrontTest, AFrontThatIsKilledHasEnded) {
  Create(true);
  UniqueFd front = Call("start\n");
  EXPECT_EQ(Line(front), "1\n");
  front.reset();
  ASSERT_TRUE(WaitForCalls(2));
  EXPECT_EQ(calls_.back(), std::tuple(1u, true, 137));
}

TEST_F(MpirunFrontTest, WorkersGetTheCodeOfTheSameCall) {
  Create(false);
  UniqueFd first = Call("wait\n");
  front_->Ended(2, 5);
  front_->Ended(1, 3);
  EXPECT_EQ(Line(first), "3\n");
  UniqueFd second = Call("wait\n");
  EXPECT_EQ(Line(second), "5\n");
  UniqueFd third = Call("wait\n");
  front_->Release(6);
  EXPECT_EQ(Line(third), "6\n");
  UniqueFd late = Call("wait\n");
  EXPECT_EQ(Line(late), "6\n");
  EXPECT_THAT(calls_, ElementsAre());
}

TEST_F(MpirunFrontTest, WhatIsNoQuestionIsIgnored) {
  Create(false);
  UniqueFd rubbish = Call(std::string(100'000, 'x'));
  UniqueFd lines = Call("start\nended 4\n\n\n");
  UniqueFd good = Call("wait\n");
  front_->Ended(1, 2);
  EXPECT_EQ(Line(good), "2\n");
  EXPECT_THAT(calls_, ElementsAre());
}

TEST_F(MpirunFrontTest, StandsInFrontOfPathAndGoes) {
  Create(false);
  std::map<std::string, std::string> environment = {{"PATH", "/usr/bin"}};
  front_->AddTo(&environment);
  EXPECT_EQ(environment["PATH"], folder_ + "/mpi:/usr/bin");
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/mpi/mpirun"), "/bin/true");
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/mpi/mpiexec"), "/bin/true");
  front_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/mpi"));
}

TEST_F(MpirunFrontTest, NothingOfPathIsWhereOthersMayWrite) {
  std::filesystem::create_directory(folder_ + "/open");
  std::filesystem::permissions(folder_ + "/open", std::filesystem::perms::all);
  auto front = MpirunFront::Create(&loop_, folder_ + "/open/mpi", "/bin/true", true, {});
  EXPECT_EQ(front.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(front.status().message()), HasSubstr(folder_ + "/open'"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/open"));
}

TEST_F(MpirunFrontTest, AFolderThatCannotBeMadeIsNamed) {
  auto front = MpirunFront::Create(&loop_, "/proc/nowhere/mpi", "/bin/true", true, {});
  EXPECT_THAT(std::string(front.status().message()), HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace taskd::modes
