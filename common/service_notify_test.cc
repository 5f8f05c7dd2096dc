#include "common/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

// A service manager's end, at `name` as NOTIFY_SOCKET has it.
class ServiceManager {
 public:
  explicit ServiceManager(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path));
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length), 0) << name;
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~ServiceManager() { unsetenv("NOTIFY_SOCKET"); }

  // One datagram; "" if there is none.
  std::string Receive() const {
    char text[64];
    const ssize_t size = recv(fd_.get(), text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  UniqueFd fd_;
};

TEST(ServiceNotifyTest, SendsToAPath) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/notify-", getpid());
  const ServiceManager manager(path);
  NotifyServiceManager("READY=1");
  NotifyServiceManager("STOPPING=1");
  EXPECT_EQ(manager.Receive(), "READY=1");
  EXPECT_EQ(manager.Receive(), "STOPPING=1");
  unlink(path.c_str());
}

TEST(ServiceNotifyTest, SendsToAnAbstractName) {
  const ServiceManager manager(absl::StrCat("@taskd-test/", getpid()));
  NotifyServiceManager("READY=1");
  EXPECT_EQ(manager.Receive(), "READY=1");
}

TEST(ServiceNotifyTest, TakesTheLongestName) {
  std::string name = absl::StrCat("@", getpid(), "/");
  name.resize(sizeof(sockaddr_un::sun_path), 'x');
  const ServiceManager manager(name);
  NotifyServiceManager("READY=1");
  EXPECT_EQ(manager.Receive(), "READY=1");
}

TEST(ServiceNotifyTest, DoesNothingWithoutASocket) {
  unsetenv("NOTIFY_SOCKET");
  NotifyServiceManager("READY=1");
  const std::string too_long(sizeof(sockaddr_un::sun_path), 'x');
  for (const std::string& name :
       {std::string(), std::string("@"), std::string("relative"), "/" + too_long, std::string("/no/such/socket")}) {
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    NotifyServiceManager("READY=1");
  }
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace taskd
