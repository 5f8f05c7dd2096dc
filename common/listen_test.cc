#include "common/listen.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/testing/free_port.h"

namespace taskd {
namespace {

TEST(ListenTest, SomebodyListens) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const int port = testing::FreePort();
    absl::StatusOr<UniqueFd> listener = ListenTcp({host, port}, false);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(LocalPort(listener->get()), port);
    EXPECT_TRUE(IsListenedOn(port)) << host;
    EXPECT_TRUE(HolderOfPort(port).starts_with(absl::StrCat("pid ", getpid(), " ("))) << HolderOfPort(port);
    EXPECT_TRUE(absl::IsAlreadyExists(ListenTcp({host, port}, false).status())) << host;
    listener->reset();
    EXPECT_FALSE(IsListenedOn(port)) << host;
  }
}

// What a machine may be silent, its kernel has to be told: else it resets the connection of one that comes back.
TEST(ListenTest, TheKernelIsAsPatientAsItsProcess) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto get = [&](int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(getsockopt(fd.get(), level, name, &value, &length), 0);
    return value;
  };
  for (const int64_t silence_ms : {5'000, 60'000, 86'400'000}) {
    SetPromptAndWatched(fd.get(), silence_ms);
    EXPECT_EQ(get(IPPROTO_TCP, TCP_USER_TIMEOUT), silence_ms);
    EXPECT_EQ(get(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_LE((get(IPPROTO_TCP, TCP_KEEPIDLE) + get(IPPROTO_TCP, TCP_KEEPINTVL)) * 1000, silence_ms / 2);
  }
}

// The system gives high ports to connections: then the port is in use, but has no listener.
TEST(ListenTest, AConnectionIsNoListener) {
  absl::StatusOr<UniqueFd> listener = ListenTcp({"127.0.0.1", 0}, false);
  ASSERT_TRUE(listener.ok()) << listener.status();
  UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(LocalPort(listener->get())));
  ASSERT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const int port = LocalPort(connection.get());
  const absl::Status taken = ListenTcp({"", port}, true).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_EQ(taken.message(), absl::StrCat("*:", port, ": address in use"));
  EXPECT_FALSE(IsListenedOn(port));
}

}  // namespace
}  // namespace taskd
