#include "common/peer_user.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/listen.h"
#include "common/testing/deadline.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

// A listener, and a child of user `uid` that connects to it until this goes out of scope.
class Connected {
 public:
  Connected(const HostPort& listen, const char* dial, uid_t uid, bool resets = false) {
    absl::StatusOr<UniqueFd> listener = ListenTcp(listen, listen.host == "::");
    EXPECT_TRUE(listener.ok()) << listener.status();
    if (!listener.ok()) return;
    const int port = LocalPort(listener->get());
    int hold[2];
    EXPECT_EQ(pipe(hold), 0);
    child_ = fork();
    if (child_ == 0) {
      close(hold[1]);
      if (uid != geteuid() && setresuid(uid, uid, uid) != 0) _exit(1);
      sockaddr_in6 v6{};
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(static_cast<uint16_t>(port));
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = v6.sin6_port;
      const bool is_v4 = inet_pton(AF_INET, dial, &v4.sin_addr) == 1;
      if (!is_v4) inet_pton(AF_INET6, dial, &v6.sin6_addr);
      const int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
      const int result = is_v4 ? connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4))
                               : connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6));
      if (result != 0) _exit(1);
      const linger at_once{1, 0};
      if (resets && setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) != 0) _exit(1);
      char byte;
      _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(hold[0]);
    hold_.reset(hold[1]);
    pollfd ready{listener->get(), POLLIN, 0};
    poll(&ready, 1, testing::kHangLimitMs);
    accepted_.reset(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  ~Connected() { EndPeer(); }

  int fd() const { return accepted_.get(); }
  void EndPeer() {
    hold_.reset();
    if (child_ > 0) waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
  UniqueFd hold_, accepted_;
};

TEST(PeerUserTest, NamesTheUserAtTheOtherEnd) {
  struct Case {
    HostPort listen;
    const char* dial;
  };
  for (const Case& one : {Case{{"127.0.0.1", 0}, "127.0.0.1"}, Case{{"::1", 0}, "::1"}, Case{{"::", 0}, "127.0.0.1"},
                          Case{{"::", 0}, "::1"}, Case{{"127.0.0.1", 0}, "::ffff:127.0.0.1"}}) {
    Connected own(one.listen, one.dial, geteuid());
    ASSERT_GE(own.fd(), 0) << one.dial;
    EXPECT_EQ(UserOfLoopbackPeer(own.fd()), geteuid()) << one.listen.host << " " << one.dial;
    if (geteuid() != 0) continue;
    Connected stranger(one.listen, one.dial, 2002);
    ASSERT_GE(stranger.fd(), 0) << one.dial;
    EXPECT_EQ(UserOfLoopbackPeer(stranger.fd()), uid_t{2002}) << one.listen.host << " " << one.dial;
  }
}

TEST(PeerUserTest, AnotherUserIsAStranger) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const char* dial : {"127.0.0.1", "::1", "::ffff:127.0.0.1"}) {
    Connected own({"::", 0}, dial, 0);
    EXPECT_FALSE(MayBeStrangers(FindLoopbackPeer(own.fd()))) << dial;
    Connected stranger({"::", 0}, dial, 2002);
    EXPECT_TRUE(MayBeStrangers(FindLoopbackPeer(stranger.fd()))) << dial;
  }
}

// Or a stranger would send what is not answered, close, and be nobody's.
TEST(PeerUserTest, WhoIsGoneMayHaveBeenAStranger) {
  for (const bool resets : {false, true}) {
    Connected peer({"127.0.0.1", 0}, "127.0.0.1", geteuid(), resets);
    EXPECT_FALSE(MayBeStrangers(FindLoopbackPeer(peer.fd())));
    peer.EndPeer();
    EXPECT_TRUE(MayBeStrangers(FindLoopbackPeer(peer.fd()))) << resets;
  }
}

// Who was told that nothing follows is still there.
TEST(PeerUserTest, AHalfClosedConnectionHasItsUser) {
  Connected peer({"127.0.0.1", 0}, "127.0.0.1", geteuid());
  ASSERT_EQ(shutdown(peer.fd(), SHUT_WR), 0);
  EXPECT_EQ(FindLoopbackPeer(peer.fd()).user, geteuid());
}

TEST(PeerUserTest, APeerThatIsGoneIsNobody) {
  // The kernel reports root as the owner of what is left of such a connection.
  Connected peer({"127.0.0.1", 0}, "127.0.0.1", geteuid() == 0 ? 2002 : geteuid());
  ASSERT_GE(peer.fd(), 0);
  peer.EndPeer();
  EXPECT_EQ(UserOfLoopbackPeer(peer.fd()), std::nullopt);
}

// A socket of that user's with an abstract name.
UniqueFd BindAbstract(uid_t user, const std::string& name, int type = SOCK_STREAM) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(setresuid(-1, user, -1), 0);
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  EXPECT_EQ(setresuid(-1, getuid(), -1), 0);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0) << strerror(errno);
  return fd;
}

TEST(PeerUserTest, AnAbstractNameHasAUser) {
  const std::string name = absl::StrCat("taskd-peer-user-test-", getpid());
  EXPECT_EQ(UserOfAbstractSocket(name), std::nullopt);
  const uid_t other = geteuid() == 0 ? 2002 : geteuid();
  const UniqueFd fd = BindAbstract(other, name);
  EXPECT_EQ(UserOfAbstractSocket(name), other);
}

// /proc/net/unix shows a name's line breaks as they are.
TEST(PeerUserTest, ANameWithALineInItIsNoOtherName) {
  const std::string name = absl::StrCat("taskd-peer-user-test-", getpid());
  const UniqueFd own = BindAbstract(geteuid(), name + "-own");
  struct stat info;
  ASSERT_EQ(fstat(own.get(), &info), 0);
  const UniqueFd forged = BindAbstract(geteuid(), absl::StrCat("x\n0: 2 0 0 1 1 ", info.st_ino, " @", name));
  EXPECT_EQ(UserOfAbstractSocket(name), std::nullopt);
}

// Each type has names of its own.
TEST(PeerUserTest, ADatagramSocketOfTheNameIsNotIt) {
  const std::string name = absl::StrCat("taskd-peer-user-test-", getpid());
  const UniqueFd datagrams = BindAbstract(geteuid(), name, SOCK_DGRAM);
  EXPECT_EQ(UserOfAbstractSocket(name), std::nullopt);
}

TEST(PeerUserTest, WhatIsNoTcpConnectionIsNobodys) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(UserOfLoopbackPeer(pair[0]), std::nullopt);
  close(pair[0]);
  close(pair[1]);
  EXPECT_EQ(UserOfLoopbackPeer(-1), std::nullopt);
  EXPECT_FALSE(MayBeStrangers(FindLoopbackPeer(-1)));
}

}  // namespace
}  // namespace taskd
