// The hello: handing the segment over, living through proxies that come and go.
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "taskd/hello.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::SegmentView;
using testing::WaitUntil;

int ThreadsNamed(const std::string& thread_name) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    found += name == thread_name;
  }
  return found;
}

bool Attached() {
  taskd_worker_stats stats;
  return taskd_worker_get_stats(&stats) == 0 && stats.attached == 1;
}

std::string SocketPath() {
  const char* path = getenv("TASKD_SOCKET");
  return path == nullptr ? "" : path;
}

// A proxy as far as the hello goes.
class Server {
 public:
  Server() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    SocketPath().copy(address.sun_path, sizeof(address.sun_path) - 1);
    unlink(address.sun_path);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    const timeval patience = {testing::kHangLimit.count(), 0};  // of accept
    setsockopt(listener_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Server() {
    Drop();
    close(listener_);
    unlink(SocketPath().c_str());
  }

  // Takes the next connection's hello and descriptor.
  bool Accept() {
    Drop();
    connection_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection_ < 0) return false;
    const timeval patience = {testing::kHangLimit.count(), 0};
    setsockopt(connection_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec data = {&hello_, sizeof(hello_)};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(connection_, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof(hello_)) return false;
    const cmsghdr* rights = CMSG_FIRSTHDR(&message);
    if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return false;
    memcpy(&segment_, CMSG_DATA(rights), sizeof(int));
    return true;
  }
  void Reply(hello::Status status) {
    hello::HelloReply reply = {};
    reply.magic = hello::kMagic;
    reply.version = hello::kVersion;
    reply.status = status;
    EXPECT_EQ(send(connection_, &reply, sizeof(reply), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(reply)));
  }
  // The worker closed the connection.
  bool PeerIsGone() {
    char byte;
    return recv(connection_, &byte, 1, 0) == 0;
  }
  void Drop() {
    if (connection_ >= 0) close(connection_);
    if (segment_ >= 0) close(segment_);
    connection_ = -1;
    segment_ = -1;
  }
  const hello::Hello& hello() const { return hello_; }
  int segment() const { return segment_; }

 private:
  int listener_;
  int connection_ = -1;
  int segment_ = -1;
  hello::Hello hello_ = {};
};

FRESH_TEST(HelloClientTest, HandsTheSegmentOver) {
  Server server;
  ASSERT_EQ(taskd_worker_init(12, 4, 5000), 0);
  taskd_mark("step 1");
  ASSERT_TRUE(server.Accept());
  EXPECT_EQ(server.hello().magic, hello::kMagic);
  EXPECT_EQ(server.hello().version, hello::kVersion);
  EXPECT_EQ(server.hello().role, hello::kRoleWorker);
  EXPECT_EQ(server.hello().rank, 12);
  EXPECT_EQ(server.hello().local_rank, 4);
  EXPECT_EQ(server.hello().pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(server.hello().disk_limit_mb, 5000u);
  EXPECT_FALSE(Attached());
  server.Reply(hello::kAccepted);
  EXPECT_TRUE(WaitUntil(Attached));
  EXPECT_EQ(ThreadsNamed("taskd-hello"), 1);
  {
    SegmentView segment(server.segment());
    EXPECT_EQ(segment.Last().name, "step 1");
    segment.SetGate(0);
    EXPECT_EQ(taskd_range_start("step 2"), 0u);
  }
  server.Drop();
  EXPECT_TRUE(WaitUntil([] { return !Attached(); }));
}

FRESH_TEST(HelloClientTest, WithoutARankNobodyIsCalled) {
  Server server;
  taskd_mark("step 1");
  EXPECT_EQ(ThreadsNamed("taskd-hello"), 0);
  ASSERT_EQ(taskd_worker_init(0, 0, 0), 0);
  EXPECT_TRUE(server.Accept());
}

FRESH_TEST(HelloClientTest, RankOfTheEnvironmentIsEnough) {
  setenv("RANK", "3", 1);
  Server server;
  taskd_mark("step 1");
  ASSERT_TRUE(server.Accept());
  EXPECT_EQ(server.hello().rank, 3);
  EXPECT_EQ(server.hello().local_rank, -1);
}

FRESH_TEST(HelloClientTest, FindsLaterProxiesAgain) {
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  taskd_mark("before any proxy");
  for (int life = 0; life < 5; ++life) {
    Server server;
    ASSERT_TRUE(server.Accept()) << life;
    struct stat info;
    ASSERT_EQ(fstat(server.segment(), &info), 0);
    EXPECT_EQ(SegmentView(server.segment()).Records()[0].name, "before any proxy");
    if (life % 2 == 0) {  // the others die before their answer
      server.Reply(hello::kAccepted);
      EXPECT_TRUE(WaitUntil(Attached));
    }
  }
  EXPECT_EQ(ThreadsNamed("taskd-hello"), 1);
}

FRESH_TEST(HelloClientTest, NewIdentityIsANewHello) {
  Server server;
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  ASSERT_TRUE(server.Accept());
  server.Reply(hello::kAccepted);
  ASSERT_TRUE(WaitUntil(Attached));
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);  // nothing new
  EXPECT_TRUE(Attached());
  ASSERT_EQ(taskd_worker_init(2, 0, 700), 0);
  EXPECT_TRUE(server.PeerIsGone());
  ASSERT_TRUE(server.Accept());
  EXPECT_EQ(server.hello().rank, 2);
  EXPECT_EQ(server.hello().disk_limit_mb, 700u);
  // Refused: quiet for some seconds, unless there is something new to say.
  server.Reply(hello::kRefused);
  EXPECT_TRUE(server.PeerIsGone());
  EXPECT_FALSE(Attached());
  ASSERT_EQ(taskd_worker_init(3, 0, 700), 0);
  ASSERT_TRUE(server.Accept());
  EXPECT_EQ(server.hello().rank, 3);
}

FRESH_TEST(HelloClientTest, AsksAgainForARankThatIsTaken) {
  Server server;
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(server.Accept());
    EXPECT_EQ(server.hello().rank, 1);
    server.Reply(hello::kTaken);
    EXPECT_TRUE(server.PeerIsGone());
    EXPECT_FALSE(Attached());
  }
  ASSERT_TRUE(server.Accept());
  server.Reply(hello::kAccepted);
  EXPECT_TRUE(WaitUntil(Attached));
}

FRESH_TEST(HelloClientTest, ThreadTakesNoSignals) {
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  std::string task;
  ASSERT_TRUE(WaitUntil([&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(entry.path() / "comm"), name);
      if (name == "taskd-hello") task = entry.path().string();
    }
    return !task.empty();
  }));
  std::ifstream status(task + "/status");
  std::string line;
  std::string blocked;
  while (std::getline(status, line)) {
    if (line.starts_with("SigBlk:")) blocked = line.substr(8);
  }
  const uint64_t mask = std::stoull(blocked, nullptr, 16);
  for (int number : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGPROF, SIGCHLD, SIGPIPE}) {
    EXPECT_NE(mask >> (number - 1) & 1, 0u) << strsignal(number);
  }
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
}

// The child of an attached rank: the parent's connection is the parent's alone.
FRESH_TEST(HelloClientTest, ForkedChildHoldsNoConnection) {
  Server server;
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  ASSERT_TRUE(server.Accept());
  server.Reply(hello::kAccepted);
  ASSERT_TRUE(WaitUntil(Attached));
  EXPECT_EQ(testing::RunForked([] { return Attached() ? 1 : 0; }), 0);
  EXPECT_TRUE(Attached());
  const pid_t child = fork();
  if (child == 0) {
    const int result = taskd_worker_init(2, 1, 0);
    taskd_mark("of the child");
    _exit(result == 0 && WaitUntil(Attached) ? 0 : 1);
  }
  ASSERT_TRUE(server.Accept());
  EXPECT_EQ(server.hello().rank, 2);
  EXPECT_EQ(server.hello().pid, static_cast<uint32_t>(child));
  server.Reply(hello::kAccepted);
  EXPECT_TRUE(server.PeerIsGone());  // the child's end closes it
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace taskd::worker
