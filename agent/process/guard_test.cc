#include "agent/process/guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "agent/process/worker_group.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::process {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

bool WaitUntil(const std::function<bool()>& condition) {
  return taskd::testing::WaitUntil([&] {
    if (condition()) return true;
    while (waitpid(-1, nullptr, WNOHANG) > 0) {  // orphans of a launcher that died
    }
    return false;
  });
}

bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-guard-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // dead processes do not stay zombies of whoever is init here
  }
  void TearDown() override {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      const pid_t pid = PidIn(entry.path().filename());
      if (pid > 1) kill(pid, SIGKILL);
    }
    fs::remove_all(folder_);
  }
  // 0: not written yet.
  pid_t PidIn(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return text.ends_with('\n') ? std::atoi(text.c_str()) : 0;
  }
  // A process with `cookie` in its environment, in a session of its own, that nothing but SIGKILL ends.
  void StartStubborn(const std::string& name, const std::string& cookie) {
    const pid_t pid = fork();
    if (pid == 0) {
      setsid();
      for (int signal : {SIGTERM, SIGHUP, SIGINT}) ::signal(signal, SIG_IGN);
      std::ofstream(folder_ + "/" + name) << getpid() << "\n";
      const std::string variable = kCookieVariable + "="s + cookie;
      execle("/bin/sleep", "sleep", "1000", nullptr,
             std::array{variable.c_str(), static_cast<const char*>(nullptr)}.data());
      _exit(1);
    }
    ASSERT_TRUE(WaitUntil([&] {
      std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
      std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      return HasCookie(text, cookie.substr(0, cookie.find(',')));
    }));
  }

  std::string folder_;
};

TEST_F(GuardTest, Cookies) {
  EXPECT_EQ(NewCookie().size(), 32u);
  EXPECT_NE(NewCookie(), NewCookie());
  EXPECT_TRUE(HasCookie("TASKD_RUN_COOKIE=abc", "abc"));
  EXPECT_TRUE(HasCookie("A=b\0TASKD_RUN_COOKIE=abc\0C=d\0"s, "abc"));
  EXPECT_TRUE(HasCookie("A=b\0TASKD_RUN_COOKIE=x,abc,y\0"s, "abc"));
  EXPECT_TRUE(HasCookie("TASKD_RUN_COOKIE=x,abc", "abc"));
  for (const std::string& none :
       {""s, "A=abc"s, "TASKD_RUN_COOKIE=abcd"s, "TASKD_RUN_COOKIE=xabc"s, "TASKD_RUN_COOKIE="s, "TASKD_RUN_COOKIE"s,
        "XTASKD_RUN_COOKIE=abc"s, "A=TASKD_RUN_COOKIE=abc"s, "TASKD_RUN_COOKIE=ab,c"s, "\0\0"s}) {
    EXPECT_FALSE(HasCookie(none, "abc")) << none;
  }
}

constexpr char kDaemons[] = R"(
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def write(name):
    with open(os.environ['DIR'] + '/' + name, 'w') as f: f.write('%d\n' % os.getpid())
def daemon(name, twice):
    if os.fork(): return
    os.setsid()
    if twice and os.fork(): os._exit(0)
    if twice: os.setsid()
    write(name)
    while True: time.sleep(1)
daemon('session', False)
daemon('daemon', True)
write('rank')
while True: time.sleep(1)
)";

TEST_F(GuardTest, NothingSurvivesALauncherThatIsKilled) {
  const std::string cookie = NewCookie();
  StartStubborn("stranger", NewCookie());
  StartStubborn("inner", cookie + "," + NewCookie());
  const pid_t launcher = fork();
  if (launcher == 0) {
    absl::StatusOr<std::unique_ptr<Guard>> guard = Guard::Start(cookie);
    if (!guard.ok()) _exit(1);
    std::ofstream(folder_ + "/guard") << (*guard)->pid() << "\n";
    EventLoop loop;
    std::unique_ptr<WorkerGroup> group = WorkerGroup::Create(&loop, 0, {});
    group->Spare((*guard)->pid());
    WorkerSpec rank;
    rank.argv = {"/usr/bin/python3", "-c", kDaemons};
    rank.environment = {{"PATH", "/usr/bin:/bin"}, {"DIR", folder_}, {kCookieVariable, cookie}};
    if (!group->Start({rank}).ok()) _exit(1);
    loop.Run();
    _exit(0);
  }
  const std::vector<std::string> names = {"rank", "session", "daemon", "guard", "inner"};
  for (const std::string& name : names) {
    ASSERT_TRUE(WaitUntil([&] { return PidIn(name) != 0; })) << name;
    EXPECT_TRUE(Exists(PidIn(name))) << name;
  }
  std::ifstream comm("/proc/" + std::to_string(PidIn("guard")) + "/comm");
  std::string name;
  std::getline(comm, name);
  EXPECT_EQ(name, "taskd-guard");
  EXPECT_EQ(getsid(PidIn("guard")), PidIn("guard"));
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) kill(PidIn("guard"), signal);
  std::vector<std::string> files;
  for (const fs::directory_entry& fd : fs::directory_iterator("/proc/" + std::to_string(PidIn("guard")) + "/fd")) {
    files.push_back(fd.path().filename());
  }
  EXPECT_THAT(files, ::testing::UnorderedElementsAre("0", "1", "2", "3", "4"));  // 4: its signals

  kill(launcher, SIGKILL);
  for (const std::string& gone : names) EXPECT_TRUE(WaitUntil([&] { return !Exists(PidIn(gone)); })) << gone;
  EXPECT_TRUE(Exists(PidIn("stranger")));
}

TEST_F(GuardTest, AGoodbyeEndsTheGuardAlone) {
  const std::string cookie = NewCookie();
  StartStubborn("bystander", cookie);
  absl::StatusOr<std::unique_ptr<Guard>> guard = Guard::Start(cookie);
  ASSERT_TRUE(guard.ok()) << guard.status();
  const pid_t pid = (*guard)->pid();
  EXPECT_TRUE(Exists(pid));
  guard->reset();
  EXPECT_FALSE(Exists(pid));
  EXPECT_TRUE(Exists(PidIn("bystander")));
}

TEST_F(GuardTest, AGuardThatWasKilledHurtsNobody) {
  absl::StatusOr<std::unique_ptr<Guard>> guard = Guard::Start("c");
  ASSERT_TRUE(guard.ok()) << guard.status();
  kill((*guard)->pid(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return !Exists((*guard)->pid()); }));
  guard->reset();  // no SIGPIPE
}

}  // namespace
}  // namespace taskd::process
