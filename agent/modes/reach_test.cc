// With real sockets and real processes that stand in for ssh.
#include "agent/modes/reach.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "agent/modes/patience.h"
#include "agent/modes/testing/loop.h"
#include "common/listen.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::modes {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class ReachTest : public ::testing::Test {
 protected:
  ReachTest() {
    char folder[] = "/tmp/reach_test-XXXXXX";
    folder_ = mkdtemp(folder);
    process::WorkerGroup::Callbacks callbacks;
    callbacks.on_other_exit = [this](pid_t pid, int status) { children_->OnExit(pid, status); };
    group_ = process::WorkerGroup::Create(&loop_, 1'000'000'000, callbacks);
    children_ = std::make_unique<process::ChildProcesses>(group_.get());
  }
  ~ReachTest() override {
    group_.reset();
    std::filesystem::remove_all(folder_);
  }

  // A program that is called as ssh is: WORDS... HOST true.
  std::string Agent(const std::string& text) {
    std::string path = folder_ + "/agent";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::vector<std::string> Lines(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  RemoteStartWait::Options Options(std::vector<std::string> hosts, const std::string& agent) {
    RemoteStartWait::Options options;
    options.hosts = std::move(hosts);
    options.port = 0;
    options.agent = {agent, "-p", "5"};
    options.environment = {{"PATH", "/usr/bin:/bin"}, {"DIR", folder_}};
    return options;
  }

  EventLoop loop_;
  std::string folder_;
  std::unique_ptr<process::WorkerGroup> group_;
  std::unique_ptr<process::ChildProcesses> children_;
};

TEST_F(ReachTest, NamesThatResolve) {
  std::map<std::string, std::string> found;
  NameWait wait(&loop_, {"localhost", "127.0.0.7"},
                [&](const std::map<std::string, std::string>& all) { found = all; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return !found.empty(); }));
  EXPECT_THAT(found, UnorderedElementsAre(Pair("localhost", "127.0.0.1"), Pair("127.0.0.7", "127.0.0.7")));
}

TEST_F(ReachTest, NoNames) {
  bool done = false;
  NameWait wait(&loop_, {}, [&](const std::map<std::string, std::string>& all) { done = all.empty(); });
  EXPECT_TRUE(RunUntil(loop_, [&] { return done; }));
}

TEST_F(ReachTest, NamesThatDoNotResolveAreReported) {
  bool done = false;
  NameWait wait(&loop_, {"localhost", "no-such-host.invalid"}, [&](const auto&) { done = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return wait.missing().find("localhost") == std::string::npos; }));
  ASSERT_TRUE(RunUntil(loop_, [&] { return wait.missing().find('(') != std::string::npos; }));
  EXPECT_THAT(wait.missing(), HasSubstr("no-such-host.invalid does not resolve"));
  EXPECT_FALSE(done);
}

TEST_F(ReachTest, APortThatComesLater) {
  const HostPort address = {"127.0.0.1", taskd::testing::FreePort()};
  bool done = false;
  PortWait wait(&loop_, address, [&] { done = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return wait.last_error() == "Connection refused"; }));
  EXPECT_FALSE(done);
  absl::StatusOr<UniqueFd> listener = ListenTcp(address, false);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(RunUntil(loop_, [&] { return done; }));
}

TEST_F(ReachTest, AgentIsAskedUntilItLetsIn) {
  // Host b refuses twice.
  const std::string agent = Agent(R"sh(echo "$*" >> "$DIR/calls"
[ "$3" = a ] || [ "$(grep -c ' b ' "$DIR/calls")" -gt 2 ])sh");
  bool done = false;
  RemoteStartWait wait(&loop_, children_.get(), Options({"a", "b"}, agent), [&] { done = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return done; }));
  std::vector<std::string> calls = Lines("calls");
  std::sort(calls.begin(), calls.end());
  EXPECT_THAT(calls, ElementsAre("-p 5 a true", "-p 5 b true", "-p 5 b true", "-p 5 b true"));
}

TEST_F(ReachTest, WhoRefusesIsNamedWithItsWords) {
  const std::string agent = Agent("[ \"$3\" = a ] || { echo 'Permission denied' >&2; exit 255; }");
  bool done = false;
  RemoteStartWait::Options options = Options({"a", "10.0.0.2"}, agent);
  options.names = {{"10.0.0.2", "node-b"}};
  RemoteStartWait wait(&loop_, children_.get(), std::move(options), [&] { done = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] {
    return wait.missing().find("255") != std::string::npos || wait.missing().find("Permission") != std::string::npos;
  }));
  EXPECT_THAT(wait.missing(), AllOf(HasSubstr("node-b"), HasSubstr("10.0.0.2"), HasSubstr("ssh")));
  EXPECT_FALSE(done);
}

TEST_F(ReachTest, AWaitThatIsDestroyedLeavesNoCallBehind) {
  const std::string agent = Agent("echo $$ > \"$DIR/pid\"; exec sleep 600");
  auto wait = std::make_unique<RemoteStartWait>(&loop_, children_.get(), Options({"a"}, agent), [] { FAIL(); });
  ASSERT_TRUE(RunUntil(loop_, [&] { return Lines("pid").size() == 1; }));
  const pid_t pid = std::stoi(Lines("pid")[0]);
  wait.reset();
  EXPECT_TRUE(RunUntil(loop_, [&] { return !children_->Runs(pid); }));
}

TEST_F(ReachTest, MoreHostsThanAtOnce) {
  std::vector<std::string> hosts;
  for (int i = 0; i < 40; ++i) hosts.push_back("h" + std::to_string(i));
  bool done = false;
  RemoteStartWait wait(&loop_, children_.get(), Options(hosts, Agent("echo $3 >> \"$DIR/calls\"")),
                       [&] { done = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return done; }));
  EXPECT_EQ(Lines("calls").size(), 40u);
}

TEST_F(ReachTest, PatienceEnds) {
  std::string line;
  Patience patience(&loop_, 0.05, [&](const std::string& text) { line = text; });
  patience.Begin([] { return "node 1 (b) is missing"; });
  EXPECT_TRUE(patience.waits());
  ASSERT_TRUE(RunUntil(loop_, [&] { return !line.empty(); }));
  EXPECT_EQ(line, "node 1 (b) is missing: waited 0.05 s (--wait-s)");
  EXPECT_FALSE(patience.waits());
}

TEST_F(ReachTest, AWaitThatEndedIsNotOver) {
  bool over = false;
  bool later = false;
  Patience patience(&loop_, 0.01, [&](const std::string&) { over = true; });
  patience.Begin([] { return "x"; });
  patience.End();
  loop_.RunAfter(50'000'000, [&] { later = true; });
  ASSERT_TRUE(RunUntil(loop_, [&] { return later; }));
  EXPECT_FALSE(over);
}

}  // namespace
}  // namespace taskd::modes
