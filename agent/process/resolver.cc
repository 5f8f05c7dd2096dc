#include "agent/process/resolver.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <utility>

#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd::process {
namespace {

absl::StatusOr<std::vector<SocketAddress>> ResolveNow(const HostPort& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& copy = addresses.emplace_back();
    std::memcpy(&copy.storage, one->ai_addr, one->ai_addrlen);
    copy.length = one->ai_addrlen;
  }
  freeaddrinfo(list);
  if (addresses.empty()) return absl::UnavailableError("the name has no address");
  return addresses;
}

bool SameAddress(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  if (a->sa_family != AF_INET6) return false;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

std::string MachineName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

bool IsOwnAddress(const SocketAddress& address) {
  const auto* wanted = reinterpret_cast<const sockaddr*>(&address.storage);
  // All of 127.0.0.0/8 is this machine, but only one address of it is an interface's.
  if (wanted->sa_family == AF_INET &&
      ntohl(reinterpret_cast<const sockaddr_in*>(wanted)->sin_addr.s_addr) >> 24 == 127) {
    return true;
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = list; one != nullptr && !found; one = one->ifa_next) {
    found = one->ifa_addr != nullptr && SameAddress(one->ifa_addr, wanted);
  }
  freeifaddrs(list);
  return found;
}

bool IsThisMachine(const std::string& host, const std::vector<SocketAddress>& addresses) {
  const std::string name = MachineName();
  if (host == "localhost" || (!name.empty() && host == name)) return true;
  for (const SocketAddress& address : addresses) {
    if (IsOwnAddress(address)) return true;
  }
  return addresses.empty() && !name.empty() && host.substr(0, host.find('.')) == name.substr(0, name.find('.'));
}

// Shared with the thread that asks. That one cannot be interrupted and may outlive the resolver and the loop: it
// touches nothing but this.
struct Resolver::Query {
  UniqueFd done{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  HostPort address;
  absl::StatusOr<std::vector<SocketAddress>> result = absl::UnavailableError("");
};

void Resolver::Resolve(const HostPort& address, Callback callback) {
  Cancel();
  query_ = std::make_shared<Query>();
  query_->address = address;
  loop_->Add(query_->done.get(), EPOLLIN, [this, callback = std::move(callback)](uint32_t) {
    std::shared_ptr<Query> query = query_;
    uint64_t count;
    [[maybe_unused]] ssize_t got = read(query->done.get(), &count, sizeof(count));  // orders the result before this
    Callback call = callback;  // Cancel() destroys the one that the loop holds
    Cancel();
    call(std::move(query->result));
  });
  std::thread([query = query_] {
    query->result = ResolveNow(query->address);
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(query->done.get(), &one, sizeof(one));
  }).detach();
}

void Resolver::Cancel() {
  if (query_ == nullptr) return;
  loop_->Remove(query_->done.get());
  query_.reset();
}

}  // namespace taskd::process
