// With real processes: shell scripts and Python.
#include "agent/process/worker_group.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "common/log.h"
#include "common/testing/deadline.h"
#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::process {
namespace {

namespace fs = std::filesystem;
using taskd::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kLongNs = 120'000 * kNsPerMs;

// Whether a process runs; one that only waits to be waited for does not.
bool Runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(')');
  return end != std::string::npos && line[end + 2] != 'Z';
}

bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

// A descriptor points elsewhere for a while.
class Redirected {
 public:
  Redirected(int fd, int to) : fd_(fd), before_(fcntl(fd, F_DUPFD_CLOEXEC, 10)) {
    fflush(nullptr);
    dup2(to, fd);
  }
  ~Redirected() {
    fflush(nullptr);
    dup2(before_, fd_);
    close(before_);
  }

 private:
  const int fd_;
  const int before_;
};

class WorkerGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-worker-group-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    Create(kLongNs);
  }
  void TearDown() override {
    group_.reset();
    fs::remove_all(folder_);
  }

  void Create(int64_t grace_ns) {
    group_.reset();
    group_ = WorkerGroup::Create(&loop_, grace_ns,
                                 {.on_exit = [this](const WorkerExit& exit) { exits_.push_back(exit); },
                                  .on_stopped = [this] { ++stopped_; },
                                  .on_other_exit = [this](pid_t pid, int status) { others_[pid] = status; },
                                  .on_left_behind = [this](const std::vector<std::string>& names) { left_ = names; }});
  }

  // Runs the loop until `condition` holds. False: not within the patience of a test.
  bool RunsUntil(const std::function<bool()>& condition) {
    const taskd::testing::Deadline deadline;
    std::function<void()> look = [&] {
      const bool is_over = deadline.IsOver();  // before the last look: it may have taken long to get to it
      if (condition() || is_over) {
        loop_.Stop();
      } else {
        loop_.RunAfter(kNsPerMs, look);
      }
    };
    loop_.RunAfter(0, look);
    loop_.Run();
    return condition();
  }
  void RunUntil(const std::function<bool()>& condition) { EXPECT_TRUE(RunsUntil(condition)); }
  void RunUntilExits(size_t count) {
    RunUntil([&] { return exits_.size() >= count; });
  }
  void StopAndWait(int signal = SIGTERM) {
    const int before = stopped_;
    group_->Stop(signal);
    EXPECT_EQ(stopped_, before);
    RunUntil([&] { return stopped_ > before; });
    EXPECT_THAT(group_->pids(), IsEmpty());
  }

  WorkerSpec Command(std::vector<std::string> argv, int local_rank = 0) {
    WorkerSpec spec;
    spec.local_rank = local_rank;
    spec.rank = 100 + local_rank;
    spec.argv = std::move(argv);
    spec.environment = {{"PATH", "/usr/bin:/bin"}, {"DIR", folder_}, {"LOCAL_RANK", std::to_string(local_rank)}};
    return spec;
  }
  WorkerSpec Shell(const std::string& script, int local_rank = 0) {
    return Command({"bash", "-c", script}, local_rank);
  }
  WorkerSpec Python(const std::string& script, int local_rank = 0) {
    return Command({"/usr/bin/python3", "-c", script}, local_rank);
  }
  void MustStart(const std::vector<WorkerSpec>& workers) {
    absl::Status status = group_->Start(workers);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string File(const std::string& name) { return folder_ + "/" + name; }
  std::string Slurp(const std::string& name) {
    std::ifstream file(File(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void AwaitFile(const std::string& name) {
    RunUntil([&] { return Slurp(name).ends_with('\n'); });
  }
  pid_t PidIn(const std::string& name) {
    AwaitFile(name);
    return std::stoi(Slurp(name));
  }

  std::string folder_;
  EventLoop loop_;
  std::unique_ptr<WorkerGroup> group_;
  std::vector<WorkerExit> exits_;
  std::map<pid_t, int> others_;
  std::vector<std::string> left_;
  int stopped_ = 0;
};

TEST_F(WorkerGroupTest, ExitCodesAndSignals) {
  MustStart({Shell("exit 3", 0), Shell("kill -SEGV $$", 1), Shell("exit 0", 2)});
  std::map<int, pid_t> pids = group_->pids();
  EXPECT_EQ(pids.size(), 3u);
  RunUntilExits(3);
  EXPECT_THAT(group_->pids(), IsEmpty());
  std::sort(exits_.begin(), exits_.end(), [](auto& a, auto& b) { return a.local_rank < b.local_rank; });
  EXPECT_EQ(exits_[0].code, 3);
  EXPECT_EQ(exits_[0].signal, 0);
  EXPECT_EQ(exits_[0].rank, 100);
  EXPECT_EQ(exits_[0].pid, pids[0]);
  EXPECT_FALSE(exits_[0].ok());
  EXPECT_EQ(exits_[1].code, 128 + SIGSEGV);
  EXPECT_EQ(exits_[1].signal, SIGSEGV);
  EXPECT_TRUE(exits_[2].ok());
  const int64_t now_ns = time(nullptr) * 1'000'000'000LL;
  EXPECT_NEAR(static_cast<double>(exits_[0].time_ns), static_cast<double>(now_ns), 3600e9);
  StopAndWait();
  EXPECT_EQ(exits_.size(), 3u);
}

TEST_F(WorkerGroupTest, EndsAreToldInTheirOrder) {
  // The one that was started last ends first, and nobody looks before both have.
  MustStart({Shell("while [ ! -e $DIR/go1 ]; do sleep 0.01; done; exit 1", 0),
             Shell("while [ ! -e $DIR/go2 ]; do sleep 0.01; done; exit 2", 1), Shell("exit 3", 2)});
  std::map<int, pid_t> pids = group_->pids();
  ASSERT_TRUE(WaitUntil([&] { return !Runs(pids[2]); }));
  std::ofstream(File("go2")).put('x');
  ASSERT_TRUE(WaitUntil([&] { return !Runs(pids[1]); }));
  std::ofstream(File("go1")).put('x');
  ASSERT_TRUE(WaitUntil([&] { return !Runs(pids[0]); }));
  RunUntilExits(3);
  EXPECT_EQ(exits_[0].code, 3);
  EXPECT_EQ(exits_[1].code, 2);
  EXPECT_EQ(exits_[2].code, 1);
}

TEST_F(WorkerGroupTest, WhoIgnoresSigtermIsKilledAfterTheGrace) {
  Create(50 * kNsPerMs);
  MustStart({Shell("trap '' TERM; echo >$DIR/ready; while :; do sleep 0.05; done")});
  const pid_t pid = group_->pids()[0];
  AwaitFile("ready");
  StopAndWait();
  EXPECT_FALSE(Exists(pid));
  EXPECT_THAT(exits_, IsEmpty());
}

TEST_F(WorkerGroupTest, WhoObeysHasTheGrace) {
  MustStart({Shell("trap 'echo saved >$DIR/saved; exit 0' TERM; echo >$DIR/ready; while :; do sleep 0.01; done"),
             // bash dies at once; the program behind it is still at work.
             Shell("/usr/bin/python3 -c '\nimport signal, time, sys\n"
                   "def end(*_):\n time.sleep(0.3); open(\"'$DIR'/behind\", \"w\").write(\"saved\\n\"); sys.exit()\n"
                   "signal.signal(signal.SIGTERM, end)\n"
                   // Closed by a call: Python ignores the exit of a handler that runs while it destroys a file.
                   "ready = open(\"'$DIR'/ready2\", \"w\")\nready.write(\"\\n\")\nready.close()\n"
                   "while True: time.sleep(0.01)'; true",
                   1)});
  AwaitFile("ready");
  AwaitFile("ready2");
  StopAndWait();
  EXPECT_EQ(Slurp("saved"), "saved\n");
  EXPECT_EQ(Slurp("behind"), "saved\n");
}

TEST_F(WorkerGroupTest, AnotherSignalIsSentInstead) {
  MustStart({Shell("trap 'echo int >$DIR/got; exit' INT; echo >$DIR/ready; while :; do sleep 0.01; done")});
  AwaitFile("ready");
  StopAndWait(SIGINT);
  EXPECT_EQ(Slurp("got"), "int\n");
}

TEST_F(WorkerGroupTest, ASecondStopWithSigkillDoesNotWait) {
  MustStart({Shell("trap '' TERM; echo >$DIR/ready; while :; do sleep 0.05; done")});
  AwaitFile("ready");
  group_->Stop(SIGTERM);
  loop_.RunAfter(10 * kNsPerMs, [&] { group_->Stop(SIGKILL); });
  RunUntil([&] { return stopped_ == 1; });
}

constexpr char kDaemons[] = R"(
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemon(name, setsid, twice):
    if os.fork(): return
    if setsid: os.setsid()
    if twice and os.fork(): os._exit(0)
    if twice: os.setsid()
    with open(os.environ['DIR'] + '/' + name, 'w') as f: f.write('%d\n' % os.getpid())
    while True: time.sleep(1)
daemon('child', False, False)
daemon('session', True, False)
daemon('daemon', True, True)
if 'stay' in sys.argv:
    while True: time.sleep(1)
)";

TEST_F(WorkerGroupTest, NothingIsLeftWhereverItWent) {
  Create(50 * kNsPerMs);
  WorkerSpec rank = Python(kDaemons);
  rank.argv.push_back("stay");
  MustStart({rank});
  const pid_t pid = group_->pids()[0];
  std::vector<pid_t> pids = {PidIn("child"), PidIn("session"), PidIn("daemon")};
  for (pid_t p : pids) EXPECT_TRUE(Runs(p));
  StopAndWait();
  EXPECT_FALSE(Exists(pid));
  for (pid_t p : pids) EXPECT_FALSE(Exists(p));
}

TEST_F(WorkerGroupTest, NothingIsLeftOfARankThatEndedByItself) {
  Create(50 * kNsPerMs);
  MustStart({Python(kDaemons)});
  std::vector<pid_t> pids = {PidIn("child"), PidIn("session"), PidIn("daemon")};
  RunUntilExits(1);
  EXPECT_TRUE(exits_[0].ok());
  for (pid_t p : pids) EXPECT_TRUE(Runs(p));
  StopAndWait();
  for (pid_t p : pids) EXPECT_FALSE(Exists(p));
}

TEST_F(WorkerGroupTest, NamesWhatRanksThatEndedWellLeftRunning) {
  MustStart({Shell(R"(
bash -c 'echo $$ > $DIR/uploader; while :; do sleep 1; done' &
setsid bash -c 'echo $$ > $DIR/session; while :; do sleep 1; done' &
)")});
  const std::string uploader = std::to_string(PidIn("uploader")), session = std::to_string(PidIn("session"));
  RunUntilExits(1);
  StopAndWait();
  EXPECT_THAT(left_, UnorderedElementsAre("bash (pid " + uploader + ")", "bash (pid " + session + ")"));
}

TEST_F(WorkerGroupTest, NamesNoHelpersAndNothingThatEndsByItself) {
  // The second one ends with its rank, which holds the other end of the pipe.
  MustStart({Shell(R"(
setsid sh -c 'echo > $DIR/helper; while :; do sleep 0.1; done' multiprocessing.resource_tracker &
mkfifo $DIR/pipe
bash -c 'trap "echo signalled > $DIR/ended" TERM; read < $DIR/pipe; echo itself > $DIR/ended' &
exec 3> $DIR/pipe
until [ -e $DIR/helper ]; do sleep 0.01; done
)")});
  RunUntilExits(1);
  StopAndWait();
  EXPECT_THAT(left_, IsEmpty());
  EXPECT_EQ(Slurp("ended"), "itself\n");
}

TEST_F(WorkerGroupTest, NamesNothingOfRanksThatWereStoppedOrFailed) {
  const std::string leaves = "setsid bash -c 'echo $$ > $DIR/session$LOCAL_RANK; exec sleep 600' & ";
  MustStart({Shell(leaves + "sleep 600", 0), Shell(leaves + "exit 0", 1)});
  AwaitFile("session0");
  AwaitFile("session1");
  RunUntilExits(1);
  StopAndWait();
  EXPECT_THAT(left_, IsEmpty());
  MustStart({Shell(leaves + "exit 3", 2)});
  AwaitFile("session2");
  RunUntilExits(2);
  StopAndWait();
  EXPECT_THAT(left_, IsEmpty());
}

TEST_F(WorkerGroupTest, ForksAreKilledFasterThanTheyFork) {
  Create(0);
  MustStart({Python(R"(
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ['DIR'] + '/ready', 'w').write('\n')
for i in range(100000):
    if os.fork(): os._exit(0)
    os.setsid()
)")});
  AwaitFile("ready");
  StopAndWait();
  std::string children;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "environ");
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (text.find("DIR=" + folder_) != std::string::npos) children += entry.path().string() + " ";
  }
  EXPECT_EQ(children, "");
}

TEST_F(WorkerGroupTest, OthersAreSpared) {
  const pid_t other = fork();
  if (other == 0) {
    execl("/bin/sh", "sh", "-c", "sleep 1000 & echo $! >$0; wait", File("grandchild").c_str(), nullptr);
    _exit(1);
  }
  group_->Spare(other);
  const pid_t grandchild = PidIn("grandchild");
  MustStart({Shell("exit 0")});
  StopAndWait(SIGKILL);
  EXPECT_TRUE(Runs(other));
  EXPECT_TRUE(Runs(grandchild));
  kill(other, SIGUSR1);
  RunUntil([&] { return others_.contains(other); });
  EXPECT_EQ(WTERMSIG(others_[other]), SIGUSR1);
  kill(grandchild, SIGKILL);
  RunUntil([&] { return others_.contains(grandchild); });  // it was adopted
}

TEST_F(WorkerGroupTest, StopWithoutRanks) {
  StopAndWait();
  StopAndWait(SIGKILL);
  EXPECT_EQ(stopped_, 2);
}

TEST_F(WorkerGroupTest, StartsAgain) {
  for (int round = 0; round < 3; ++round) {
    MustStart({Shell("exit 7", 0), Shell("sleep 1000", 1)});
    EXPECT_EQ(group_->Start({Shell("exit 0")}).code(), absl::StatusCode::kFailedPrecondition);
    RunUntilExits(static_cast<size_t>(round) + 1);
    EXPECT_EQ(group_->pids().size(), 1u);
    StopAndWait();
  }
  EXPECT_EQ(exits_.size(), 3u);
}

TEST_F(WorkerGroupTest, ExitsBeforeTheStopAreReported) {
  MustStart({Shell("exit 9", 0), Shell("sleep 1000", 1)});
  std::map<int, pid_t> pids = group_->pids();
  ASSERT_TRUE(WaitUntil([&] { return !Runs(pids[0]); }));
  StopAndWait();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].code, 9);
}

TEST_F(WorkerGroupTest, AProgramThatIsMissing) {
  WorkerSpec first = Shell("echo $$ >$DIR/first; sleep 1000", 0);
  absl::Status status = group_->Start({first, Command({"/no/such/program"}, 1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 101 (local rank 1)"), HasSubstr("/no/such/program"), HasSubstr("No such file")));
  EXPECT_THAT(group_->pids(), IsEmpty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // the first one is gone, and was waited for
  EXPECT_EQ(errno, ECHILD);

  status = group_->Start({Command({"no-such-program"})});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("no-such-program"), HasSubstr("/usr/bin:/bin")));
  std::ofstream(File("text")) << "x";
  EXPECT_THAT(std::string(group_->Start({Command({File("text")})}).message()), HasSubstr("Permission denied"));
  WorkerSpec no_log = Shell("exit 0");
  no_log.out = {.file = "/no/such/folder/log", .console = false, .prefix = ""};
  EXPECT_THAT(std::string(group_->Start({no_log}).message()), HasSubstr("/no/such/folder/log"));
  // And it can be used afterwards.
  MustStart({Shell("exit 0")});
  RunUntilExits(1);
}

TEST_F(WorkerGroupTest, SixtyFourRanks) {
  std::vector<WorkerSpec> workers;
  for (int rank = 0; rank < 64; ++rank) workers.push_back(Shell("exit $((LOCAL_RANK % 7))", rank));
  MustStart(workers);
  RunUntilExits(64);
  std::set<int> seen;
  for (const WorkerExit& exit : exits_) {
    EXPECT_EQ(exit.code, exit.local_rank % 7);
    seen.insert(exit.local_rank);
  }
  EXPECT_EQ(seen.size(), 64u);
}

TEST_F(WorkerGroupTest, AStoppedRank) {
  MustStart({Shell("trap 'echo saved >$DIR/saved; exit 0' TERM; echo >$DIR/ready; kill -STOP $$; while :; do sleep "
                   "0.01; done"),
             Shell("trap 'exit 0' TERM; sleep 1000 & kill -STOP $$; wait", 1)});
  AwaitFile("ready");
  RunUntil([&] {
    return std::ranges::all_of(group_->pids(), [](const auto& rank) {
      std::ifstream file("/proc/" + std::to_string(rank.second) + "/stat");
      std::string line;
      std::getline(file, line);
      return line.find(") T ") != std::string::npos;
    });
  });
  StopAndWait();
  EXPECT_EQ(Slurp("saved"), "saved\n");
  MustStart({Shell("kill -STOP $$")});
  StopAndWait(SIGKILL);
}

// Its helper dies of SIGUSR1 and SIGTERM, as a data loader does, and is needed until the rank has saved.
TEST_F(WorkerGroupTest, SignalsGoToTheRanksProcessAlone) {
  const std::string script = R"(
import os, signal, subprocess, sys
helper = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def save(name):
    helper.stdin.write(b'saved\n')
    helper.stdin.flush()
    with open(os.environ['DIR'] + '/' + name, 'wb') as file: file.write(helper.stdout.readline())
def on_signal(number, frame):
    save('usr1' if number == signal.SIGUSR1 else 'term')
    if number == signal.SIGTERM: sys.exit()
signal.signal(signal.SIGUSR1, on_signal)
signal.signal(signal.SIGTERM, on_signal)
with open(os.environ['DIR'] + '/ready', 'w') as file: file.write('\n')
while True: signal.pause()
)";
  MustStart({Python(script)});
  AwaitFile("ready");
  group_->Signal(SIGUSR1);
  AwaitFile("usr1");
  StopAndWait();
  EXPECT_EQ(Slurp("usr1"), "saved\n");
  EXPECT_EQ(Slurp("term"), "saved\n");
}

TEST_F(WorkerGroupTest, WhatARankIsBornWith) {
  signal(SIGUSR2, SIG_IGN);
  const int leaked = open("/dev/null", O_RDONLY);  // no O_CLOEXEC
  WorkerSpec rank = Python(R"(
import os, json
status = dict(l.split(':\t') for l in open('/proc/self/status').read().splitlines() if ':\t' in l)
json.dump({'fds': sorted(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + f)),
           'sid': os.getsid(0) == os.getpid(), 'pgid': os.getpgid(0) == os.getpid(),
           'blocked': status['SigBlk'], 'environment': dict(os.environ)}, open(os.environ['DIR'] + '/born', 'w'))
)");
  rank.environment["ODD"] = "a=b:c;d \n";
  rank.environment["EMPTY"] = "";
  // Python and shells ignore some signals by themselves.
  WorkerSpec plain = Command({"grep", "SigIgn", "/proc/self/status"}, 1);
  plain.out = {.file = File("ignored"), .console = false, .prefix = ""};
  MustStart({rank, plain});
  RunUntilExits(2);
  close(leaked);
  signal(SIGUSR2, SIG_DFL);
  EXPECT_THAT(Slurp("born"), AllOf(HasSubstr("\"fds\": [0, 1, 2]"), HasSubstr("\"sid\": true"),
                                   HasSubstr("\"pgid\": true"), HasSubstr("\"blocked\": \"0000000000000000\"")));
  EXPECT_THAT(Slurp("born"), AllOf(HasSubstr("\"ODD\": \"a=b:c;d \\n\""), HasSubstr("\"EMPTY\": \"\""),
                                   HasSubstr("\"DIR\": \"" + folder_ + "\""), Not(HasSubstr("\"HOME\""))));
  EXPECT_EQ(Slurp("ignored"), "SigIgn:\t0000000000000000\n");
}

TEST_F(WorkerGroupTest, OutputIntoFilesAndNowhere) {
  WorkerSpec files = Shell("echo out; echo err >&2; printf end", 0);
  files.out = {.file = File("out"), .console = false, .prefix = ""};
  files.err = {.file = File("err"), .console = false, .prefix = ""};
  WorkerSpec nowhere = Shell("readlink /proc/$$/fd/1 >$DIR/where", 1);
  nowhere.out.console = false;
  MustStart({files, nowhere});
  RunUntilExits(2);
  EXPECT_EQ(Slurp("out"), "out\nend");
  EXPECT_EQ(Slurp("err"), "err\n");
  EXPECT_EQ(Slurp("where"), "/dev/null\n");
}

TEST_F(WorkerGroupTest, TeedLinesAreWhole) {
  constexpr int kRanks = 4;
  constexpr int kLines = 3000;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::string console;
  std::thread reader([&] {
    char buffer[1000];
    for (ssize_t count; (count = read(ends[0], buffer, sizeof(buffer))) > 0;)
      console.append(buffer, static_cast<size_t>(count));
  });
  {
    Redirected out(STDOUT_FILENO, ends[1]);
    Create(kLongNs);
    std::vector<WorkerSpec> workers;
    for (int rank = 0; rank < kRanks; ++rank) {
      WorkerSpec spec = Python(R"(
import os
r = os.environ['LOCAL_RANK']
for i in range(3000):
    os.write(1, ('line %d of %s ' % (i, r)).encode()); os.write(1, b'x' * (i % 97) + b'\n')
os.write(1, b'last of ' + r.encode())
)",
                               rank);
      spec.out = {.file = File("log" + std::to_string(rank)),
                  .console = true,
                  .prefix = "[default" + std::to_string(rank) + "]:"};
      workers.push_back(spec);
    }
    MustStart(workers);
    RunUntilExits(kRanks);
    StopAndWait();
    group_.reset();
  }
  close(ends[1]);
  reader.join();
  close(ends[0]);
  std::vector<std::string> seen(kRanks);
  std::istringstream lines(console);
  for (std::string line; std::getline(lines, line);) {
    ASSERT_TRUE(line.starts_with("[default") && line.substr(9, 2) == "]:") << line;
    const int rank = line[8] - '0';
    ASSERT_TRUE(rank >= 0 && rank < kRanks);
    seen[static_cast<size_t>(rank)] += line.substr(11) + "\n";
  }
  EXPECT_TRUE(console.ends_with('\n'));
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string expected;
    for (int i = 0; i < kLines; ++i) {
      expected += "line " + std::to_string(i) + " of " + std::to_string(rank) + " " +
                  std::string(static_cast<size_t>(i % 97), 'x') + "\n";
    }
    expected += "last of " + std::to_string(rank);
    EXPECT_EQ(Slurp("log" + std::to_string(rank)), expected);
    EXPECT_EQ(seen[static_cast<size_t>(rank)], expected + "\n");
  }
}

// The launcher's stdout is a pipe that nobody reads until ReadAll().
class UnreadConsole {
 public:
  UnreadConsole() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
    redirected_ = std::make_unique<Redirected>(STDOUT_FILENO, ends[1]);
  }
  ~UnreadConsole() { End(); }

  int read_end() const { return read_end_.get(); }
  void ReadAll() {
    reader_ = std::thread([this] {
      std::vector<char> buffer(1 << 16);
      for (ssize_t count; (count = read(read_end_.get(), buffer.data(), buffer.size())) > 0;) {
        text_.append(buffer.data(), static_cast<size_t>(count));
      }
    });
  }
  // After the group's end.
  std::string End() {
    redirected_.reset();
    write_end_.reset();
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::unique_ptr<Redirected> redirected_;
  std::thread reader_;
  std::string text_;
};

constexpr int kLoudLines = 3000;

// More than the console, its queue and the rank's pipe take.
std::string LoudScript(int code) {
  return "for i in $(seq " + std::to_string(kLoudLines) + "); do printf '%s %01000d\\n' $i 0; done; exit " +
         std::to_string(code);
}

std::string LoudLines(const std::string& prefix) {
  std::string text;
  for (int i = 1; i <= kLoudLines; ++i) text += prefix + std::to_string(i) + " " + std::string(1000, '0') + "\n";
  return text;
}

// Two ranks without files: one says more than the console takes, the other one nothing.
class UnreadConsoleTest : public WorkerGroupTest {
 protected:
  void StartLoudAndQuiet() {
    WorkerSpec loud = Shell(LoudScript(4), 0);
    loud.out.prefix = "p:";
    WorkerSpec quiet = Shell("read line <$DIR/fifo; exit 5", 1);
    ASSERT_EQ(mkfifo(File("fifo").c_str(), 0600), 0);
    MustStart({loud, quiet});
  }
  void OnlyLoudWaits(UnreadConsole& console) {
    std::ofstream(File("fifo")) << "go\n";
    RunUntilExits(1);
    EXPECT_EQ(exits_[0].code, 5);
    EXPECT_EQ(group_->pids().size(), 1u);
    console.ReadAll();
    RunUntilExits(2);
    EXPECT_EQ(exits_[1].code, 4);
    StopAndWait();
    group_.reset();
  }
};

TEST_F(WorkerGroupTest, WhoHasAFileNeverWaitsForTheConsole) {
  UnreadConsole console;
  Create(kLongNs);
  WorkerSpec loud = Shell(LoudScript(4) + "\n");
  loud.out = {.file = File("loud"), .console = true, .prefix = "p:"};
  std::ofstream(File("loud")) << "of an earlier launcher\n";
  MustStart({loud});
  RunUntilExits(1);
  EXPECT_EQ(exits_[0].code, 4);
  EXPECT_EQ(Slurp("loud"), "of an earlier launcher\n" + LoudLines(""));
  // What the console has not taken yet comes from the file.
  console.ReadAll();
  StopAndWait();
  group_.reset();
  EXPECT_EQ(console.End(), LoudLines("p:"));
}

TEST_F(WorkerGroupTest, TheConsoleCatchesUpWithARankThatGoesOn) {
  UnreadConsole console;
  Create(kLongNs);
  WorkerSpec rank = Shell(
      "for round in 1 2 3; do for i in $(seq 1000); do printf '%01000d\\n' $i; done; echo >$DIR/said$round; "
      "while [ ! -e $DIR/go$round ]; do sleep 0.01; done; done; printf 'the end'");
  rank.out = {.file = File("log"), .console = true, .prefix = "p:"};
  MustStart({rank});
  AwaitFile("said1");
  std::ofstream(File("go1")).put('x');
  AwaitFile("said2");
  console.ReadAll();
  std::ofstream(File("go2")).put('x');
  AwaitFile("said3");
  std::ofstream(File("go3")).put('x');
  RunUntilExits(1);
  StopAndWait();
  group_.reset();
  std::string expected;
  std::istringstream lines(Slurp("log"));
  for (std::string line; std::getline(lines, line);) expected += "p:" + line + "\n";
  EXPECT_TRUE(expected.ends_with("p:the end\n"));
  EXPECT_EQ(console.End(), expected);
}

TEST_F(UnreadConsoleTest, WhoHasNoFileWaitsAsWithoutALauncher) {
  UnreadConsole console;
  Create(kLongNs);
  StartLoudAndQuiet();
  OnlyLoudWaits(console);
  EXPECT_EQ(console.End(), LoudLines("p:"));
}

// As where `su` has started the launcher: the pipe or terminal is another user's.
TEST_F(UnreadConsoleTest, AConsoleThatCannotBeOpenedAgain) {
  UnreadConsole console;
  fchmod(console.read_end(), 0);
  const int user = setfsuid(geteuid() == 0 ? 65534 : geteuid());
  ASSERT_LT(open(("/proc/self/fd/" + std::to_string(STDOUT_FILENO)).c_str(), O_WRONLY | O_NONBLOCK), 0);
  Create(kLongNs);
  // Something else has filled it: not even a first line is taken.
  fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
  std::string before;
  while (write(STDOUT_FILENO, "filled\n", 7) == 7) before += "filled\n";
  fcntl(STDOUT_FILENO, F_SETFL, 0);
  chmod(folder_.c_str(), 0777);
  StartLoudAndQuiet();
  setfsuid(user);
  OnlyLoudWaits(console);
  EXPECT_EQ(console.End(), before + LoudLines("p:"));
}

TEST_F(WorkerGroupTest, WhatNobodyReadsIsGivenUpInTheEnd) {
  bool is_started = false, has_exited = false, has_stopped = false;
  std::string taken;
  {
    const UniqueFd log(open(File("log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const Redirected err(STDERR_FILENO, log.get());
    InitLog("run");
    UnreadConsole console;
    Create(kLongNs);
    WorkerSpec loud = Shell(LoudScript(0));
    loud.out = {.file = File("loud"), .console = true, .prefix = "p:"};
    // No assertion here: it would write into the console.
    is_started = group_->Start({loud}).ok();
    has_exited = RunsUntil([&] { return exits_.size() == 1; });
    group_->Stop(SIGTERM);
    has_stopped = RunsUntil([&] { return stopped_ == 1; });
    WaitUntil([&] { return Slurp("log").ends_with('\n'); });  // a thread of the log's writes it
    group_.reset();
    console.ReadAll();
    taken = console.End();
  }
  EXPECT_TRUE(is_started);
  EXPECT_TRUE(has_exited);
  EXPECT_TRUE(has_stopped) << "it is not given up";
  EXPECT_EQ(Slurp("loud"), LoudLines(""));
  const std::string all = LoudLines("p:");
  EXPECT_LT(taken.size(), all.size());
  EXPECT_TRUE(all.starts_with(taken)) << "the console has the begin, and nothing after a gap";
  EXPECT_THAT(Slurp("log"), HasSubstr("bytes of output are not on the console: nobody reads it"));
}

TEST_F(WorkerGroupTest, AConsoleThatBreaksStopsNothing) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  {
    Redirected out(STDOUT_FILENO, ends[1]);
    Create(kLongNs);
    close(ends[0]);
    WorkerSpec rank = Shell("for i in 1 2 3 4; do seq 10000; done; exit 6");
    rank.out = {.file = File("log"), .console = true, .prefix = "p"};
    MustStart({rank});
    RunUntilExits(1);
    StopAndWait();
    group_.reset();
  }
  close(ends[1]);
  EXPECT_EQ(exits_[0].code, 6);
  const std::string text = Slurp("log");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 40000);
}

TEST_F(WorkerGroupTest, ClosedAndKeptPipes) {
  const int log = open(File("console").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  {
    Redirected out(STDOUT_FILENO, log);
    Create(kLongNs);
    WorkerSpec closes =
        Shell("echo begin; exec >&- 2>&-; echo >$DIR/closed; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 4", 0);
    closes.out.prefix = closes.err.prefix = "a:";
    // What it leaves behind keeps the pipe.
    WorkerSpec leaves = Shell("setsid sleep 1000 & echo left; printf 'no end'; exit 5", 1);
    leaves.out.prefix = leaves.err.prefix = "b:";
    MustStart({closes, leaves});
    AwaitFile("closed");
    std::ofstream(File("go")).put('x');
    RunUntilExits(2);
    StopAndWait();
    group_.reset();
  }
  close(log);
  EXPECT_EQ(exits_[0].code + exits_[1].code, 9);
  const std::string console = Slurp("console");
  for (const char* line : {"a:begin\n", "b:left\n", "b:no end\n"}) EXPECT_THAT(console, HasSubstr(line));
}

TEST_F(WorkerGroupTest, EqualLinesOfRanksAreShownOnce) {
  const int log = open(File("console").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  {
    Redirected err(STDERR_FILENO, log);
    Create(kLongNs);
    std::vector<WorkerSpec> workers;
    for (int rank = 0; rank < 3; ++rank) {
      workers.push_back(
          Shell("echo I am $LOCAL_RANK >&2; echo no memory >&2; printf end >&2; touch $DIR/done$LOCAL_RANK; "
                "until [ -e $DIR/go ]; do sleep 0.01; done; exit 1",
                rank));
      workers.back().err = {
          .file = File("err" + std::to_string(rank)), .console = true, .prefix = "${rank}/${local_rank}:"};
    }
    MustStart(workers);
    // Nothing is read before all is there.
    for (int rank = 0; rank < 3; ++rank)
      ASSERT_TRUE(WaitUntil([&] { return fs::exists(File("done" + std::to_string(rank))); }));
    RunUntil([&] { return Slurp("console").ends_with("no memory\n"); });
    std::ofstream(File("go")).close();
    RunUntilExits(3);
    StopAndWait();
    group_.reset();
  }
  close(log);
  const std::string console = Slurp("console");
  for (const char* line : {"100/0:I am 0\n", "101/1:I am 1\n", "102/2:I am 2\n", "100-102/0-2:no memory\n"}) {
    EXPECT_THAT(console, HasSubstr(line));
  }
  EXPECT_THAT(console, HasSubstr(":end\n"));
  EXPECT_EQ(Slurp("err1"), "I am 1\nno memory\nend");
  for (const WorkerExit& exit : exits_) EXPECT_EQ(exit.last_lines.size(), 3u);
}

TEST_F(WorkerGroupTest, RanksRunOnTheirCpus) {
  const std::string script = "grep Cpus_allowed_list /proc/self/status > $DIR/cpus$LOCAL_RANK";
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &before)) --last;
  WorkerSpec bound = Shell(script, 0);
  bound.cpus = {last, 5000};  // one that there is not does no harm
  WorkerSpec not_bound = Shell(script, 1);
  WorkerSpec impossible = Shell(script, 2);
  impossible.cpus = {5000};
  impossible.err = {.file = File("err"), .console = false, .prefix = ""};
  MustStart({bound, not_bound, impossible});
  RunUntilExits(3);
  EXPECT_EQ(Slurp("cpus0"), "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
  EXPECT_EQ(Slurp("cpus1"), Slurp("cpus2"));
  EXPECT_THAT(Slurp("err"), HasSubstr("the rank is not bound to its CPUs"));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST_F(WorkerGroupTest, LastLines) {
  const std::string script = "for i in $(seq 30); do echo line $i >&2; done; printf end >&2; exit 1";
  WorkerSpec teed = Shell(script, 0);
  WorkerSpec file = Shell(script, 1);
  WorkerSpec through = Shell("exit 1", 2);
  file.err = {.file = File("err"), .console = false, .prefix = ""};
  std::ofstream(File("err")) << "of an earlier round\n";
  WorkerSpec silent = Shell("exit 1", 3);
  silent.err = {.file = File("err3"), .console = false, .prefix = ""};
  std::ofstream(File("err3")) << "of an earlier round\n";
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  {
    Redirected err(STDERR_FILENO, null);
    Create(kLongNs);
    teed.err.prefix = "p:";
    MustStart({teed, file, through, silent});
    RunUntilExits(4);
    group_.reset();
  }
  close(null);
  std::sort(exits_.begin(), exits_.end(), [](auto& a, auto& b) { return a.local_rank < b.local_rank; });
  for (int rank : {0, 1}) {
    const std::vector<std::string>& lines = exits_[static_cast<size_t>(rank)].last_lines;
    ASSERT_EQ(lines.size(), 20u);
    EXPECT_EQ(lines.front(), "line 12");
    EXPECT_EQ(lines.back(), "end");
  }
  EXPECT_THAT(exits_[2].last_lines, IsEmpty());
  EXPECT_THAT(exits_[3].last_lines, IsEmpty());
  for (const WorkerExit& exit : exits_) EXPECT_EQ(exit.stderr_unread, exit.local_rank == 2);
}

TEST_F(WorkerGroupTest, ErrorFiles) {
  struct Case {
    const char* json;
    const char* message;
  };
  const Case cases[] = {{R"({"message":{"message":"ValueError: no","extraInfo":{"py_callstack":"x","timestamp":"1"}}})",
                         "ValueError: no"},
                        {R"({"message":"text"})", "text"},
                        {R"({"message":5})", ""},
                        {"not json", ""},
                        {"", ""}};
  std::vector<WorkerSpec> workers;
  for (const Case& c : cases) {
    const int rank = static_cast<int>(workers.size());
    WorkerSpec spec = Shell("exit 1", rank);
    spec.error_file = File("error" + std::to_string(rank));
    std::ofstream(spec.error_file) << c.json;
    workers.push_back(spec);
  }
  MustStart(workers);
  RunUntilExits(workers.size());
  for (const WorkerExit& exit : exits_) {
    EXPECT_EQ(exit.error_message, cases[exit.local_rank].message);
    EXPECT_EQ(exit.error_json, cases[exit.local_rank].json);
  }
}

// What a launcher leaves that dies at once: nothing of the ranks themselves.
TEST_F(WorkerGroupTest, RanksDieWithTheLauncher) {
  group_.reset();
  const pid_t launcher = fork();
  if (launcher == 0) {
    EventLoop loop;
    std::unique_ptr<WorkerGroup> group = WorkerGroup::Create(&loop, 0, {});
    if (!group->Start({Shell("echo $$ >$DIR/pid; while :; do sleep 1; done")}).ok()) _exit(1);
    loop.Run();
    _exit(0);
  }
  ASSERT_TRUE(WaitUntil([&] { return Slurp("pid").ends_with('\n'); }));
  const pid_t rank = std::stoi(Slurp("pid"));
  EXPECT_TRUE(Runs(rank));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(WaitUntil([&] { return !Runs(rank); }));
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

TEST_F(WorkerGroupTest, TheDestructorKills) {
  MustStart({Python(kDaemons)});
  std::vector<pid_t> pids = {PidIn("child"), PidIn("session"), PidIn("daemon")};
  group_.reset();
  for (pid_t p : pids) EXPECT_FALSE(Exists(p));
}

}  // namespace
}  // namespace taskd::process
