// What a statically linked glibc can do only with the shared libraries of the glibc that it was built with, for the
// static program: names are resolved by c-ares, which reads /etc/hosts and resolv.conf afresh for each; nothing is
// loaded at run time; services have no names. The functions are glibc's, so gRPC and OpenSSL come here as well.
//
// Differences from glibc's getaddrinfo(): a service must be a number, an IPv4 address must have its four parts, and
// of nsswitch.conf only `files` and `dns` count.
#define CARES_NO_DEPRECATED  // what replaces the functions is younger than Debian 12's c-ares
#include <ares.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace {

// Of one answer, which has room for 4,000: whoever asks tries them all, and gRPC keeps some 30 KiB for each.
constexpr int kMostAddresses = 16;

// Not thread-safe, so before there are threads.
const int kAresStarted = ares_library_init(ARES_LIB_INIT_ALL);

std::optional<uint16_t> PortOf(const char* service) {
  if (service == nullptr) return 0;
  const std::string_view text = service;
  uint16_t port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

// The results, as freeaddrinfo() takes them.
class Results {
 public:
  Results(const addrinfo& hints, uint16_t port) : hints_(hints), port_(htons(port)) {}
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  ~Results() { freeaddrinfo(first_); }

  // Of a family that was not asked for: no result. False: no memory.
  bool Add(const sockaddr* address) {
    if (hints_.ai_family != AF_UNSPEC && hints_.ai_family != address->sa_family) return true;
    const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    struct Result {
      addrinfo info;
      sockaddr_storage address;
    };
    auto* result = static_cast<Result*>(std::calloc(1, sizeof(Result)));
    if (result == nullptr) return false;
    std::memcpy(&result->address, address, length);
    (address->sa_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&result->address)->sin_port
                                   : reinterpret_cast<sockaddr_in6*>(&result->address)->sin6_port) = port_;
    result->info.ai_family = address->sa_family;
    result->info.ai_socktype = hints_.ai_socktype;
    result->info.ai_protocol = hints_.ai_protocol;
    result->info.ai_addrlen = length;
    result->info.ai_addr = reinterpret_cast<sockaddr*>(&result->address);
    *end_ = &result->info;
    end_ = &result->info.ai_next;
    return true;
  }
  bool Add(const in_addr& address) {
    sockaddr_in one{};
    one.sin_family = AF_INET;
    one.sin_addr = address;
    return Add(reinterpret_cast<const sockaddr*>(&one));
  }
  bool Add(const in6_addr& address, uint32_t scope) {
    sockaddr_in6 one{};
    one.sin6_family = AF_INET6;
    one.sin6_addr = address;
    one.sin6_scope_id = scope;
    return Add(reinterpret_cast<const sockaddr*>(&one));
  }

  bool empty() const { return first_ == nullptr; }
  addrinfo* Release() {
    end_ = &first_;
    return std::exchange(first_, nullptr);
  }

 private:
  const addrinfo hints_;
  const in_port_t port_;
  addrinfo* first_ = nullptr;
  addrinfo** end_ = &first_;
};

// "10.0.0.1", "fe80::1%eth0"; an error code of getaddrinfo(), or nothing where `node` is a name.
std::optional<int> AddLiteral(const std::string& node, Results& results) {
  in_addr four;
  if (inet_pton(AF_INET, node.c_str(), &four) == 1) return results.Add(four) ? 0 : EAI_MEMORY;
  const size_t percent = node.find('%');
  in6_addr six;
  if (inet_pton(AF_INET6, node.substr(0, percent).c_str(), &six) != 1) return std::nullopt;
  uint32_t scope = 0;
  if (percent != std::string::npos) {
    const std::string zone = node.substr(percent + 1);
    auto [end, error] = std::from_chars(zone.data(), zone.data() + zone.size(), scope);
    const bool number = error == std::errc() && end == zone.data() + zone.size();
    if (!number && (scope = if_nametoindex(zone.c_str())) == 0) return EAI_NONAME;
  }
  return results.Add(six, scope) ? 0 : EAI_MEMORY;
}

// "timeout:" and "attempts:", which c-ares learned later than Debian 12's.
void ReadOptions(std::istream& words, ares_options* options) {
  auto number = [](std::string_view text, int highest, int* value) {
    int read = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
    if (error == std::errc() && end == text.data() + text.size() && read > 0) *value = std::min(read, highest);
  };
  constexpr std::string_view kTimeout = "timeout:", kAttempts = "attempts:";
  for (std::string word; words >> word;) {
    const std::string_view text = word;
    int seconds = options->timeout / 1000;
    if (text.starts_with(kTimeout)) number(text.substr(kTimeout.size()), 30, &seconds);
    if (text.starts_with(kAttempts)) number(text.substr(kAttempts.size()), 5, &options->tries);
    options->timeout = seconds * 1000;
  }
}

// How long to wait for a DNS server and how often to ask: resolv.conf(5)'s defaults and bounds.
ares_options Patience() {
  ares_options options{};
  options.timeout = 5000;
  options.tries = 2;
  std::ifstream file("/etc/resolv.conf");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string keyword;
    if (words >> keyword && keyword == "options") ReadOptions(words, &options);
  }
  if (const char* given = std::getenv("RES_OPTIONS")) {
    std::istringstream words(given);
    ReadOptions(words, &options);
  }
  return options;
}

int CodeOf(int ares) {
  switch (ares) {
    case ARES_SUCCESS:
      return 0;
    case ARES_ENOMEM:
      return EAI_MEMORY;
    case ARES_ENOTFOUND:
    case ARES_ENODATA:
    case ARES_EBADNAME:
    case ARES_ENONAME:
      return EAI_NONAME;
    case ARES_ESERVFAIL:
    case ARES_EREFUSED:
    case ARES_ECONNREFUSED:
    case ARES_ETIMEOUT:
      return EAI_AGAIN;
    default:
      return EAI_FAIL;
  }
}

void WaitForSockets(ares_channel channel) {
  ares_socket_t sockets[ARES_GETSOCK_MAXNUM];
  const int wanted = ares_getsock(channel, sockets, ARES_GETSOCK_MAXNUM);
  pollfd polled[ARES_GETSOCK_MAXNUM];
  nfds_t count = 0;
  for (int i = 0; i < ARES_GETSOCK_MAXNUM; ++i) {
    const int events =
        (ARES_GETSOCK_READABLE(wanted, i) ? POLLIN : 0) | (ARES_GETSOCK_WRITABLE(wanted, i) ? POLLOUT : 0);
    if (events != 0) polled[count++] = {sockets[i], static_cast<short>(events), 0};
  }
  timeval longest{1, 0};
  const timeval* left = ares_timeout(channel, &longest, &longest);
  if (poll(polled, count, static_cast<int>(left->tv_sec * 1000 + (left->tv_usec + 999) / 1000)) < 0) count = 0;
  for (nfds_t i = 0; i < count; ++i) {
    const bool broken = (polled[i].revents & (POLLERR | POLLHUP)) != 0;
    ares_process_fd(channel, (polled[i].revents & POLLIN) != 0 || broken ? polled[i].fd : ARES_SOCKET_BAD,
                    (polled[i].revents & POLLOUT) != 0 ? polled[i].fd : ARES_SOCKET_BAD);
  }
  ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // what is overdue
}

int AddNamed(const char* node, const addrinfo& hints, Results& results) {
  struct Answer {
    bool here = false;
    int status = ARES_SUCCESS;
    ares_addrinfo* addresses = nullptr;
  } answer;
  ares_options options{};
  ares_channel channel;
  if (int error = ares_init_options(&channel, &options, 0); error != ARES_SUCCESS) return CodeOf(error);
  ares_addrinfo_hints wanted{};
  wanted.ai_family = hints.ai_family;
  wanted.ai_socktype = hints.ai_socktype;
  ares_getaddrinfo(
      channel, node, nullptr, &wanted,
      [](void* out, int status, int /*timeouts*/, ares_addrinfo* addresses) {
        *static_cast<Answer*>(out) = {true, status, addresses};
      },
      &answer);
  while (!answer.here) WaitForSockets(channel);
  ares_destroy(channel);
  if (answer.status != ARES_SUCCESS) return CodeOf(answer.status);
  bool added = true;
  int count = 0;
  for (const ares_addrinfo_node* one = answer.addresses->nodes; one != nullptr && added; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    if (++count > kMostAddresses) break;
    added = results.Add(one->ai_addr);
  }
  ares_freeaddrinfo(answer.addresses);
  return added ? 0 : EAI_MEMORY;
}

// No name given: where to listen, or this machine.
bool AddUnnamed(bool passive, Results& results) {
  const in_addr four{htonl(passive ? INADDR_ANY : INADDR_LOOPBACK)};
  return passive ? results.Add(four) && results.Add(in6addr_any, 0)
                 : results.Add(in6addr_loopback, 0) && results.Add(four);
}

}  // namespace

extern "C" {

int getaddrinfo(const char* node, const char* service, const addrinfo* given, addrinfo** out) {
  const addrinfo hints = given != nullptr ? *given : addrinfo{};
  if (node == nullptr && service == nullptr) return EAI_NONAME;
  if (hints.ai_family != AF_UNSPEC && hints.ai_family != AF_INET && hints.ai_family != AF_INET6) return EAI_FAMILY;
  const std::optional<uint16_t> port = PortOf(service);
  if (!port) return EAI_SERVICE;
  Results results(hints, *port);
  int code = 0;
  if (node == nullptr) {
    code = AddUnnamed((hints.ai_flags & AI_PASSIVE) != 0, results) ? 0 : EAI_MEMORY;
  } else if (std::optional<int> literal = AddLiteral(node, results)) {
    code = *literal;
  } else {
    code = (hints.ai_flags & AI_NUMERICHOST) != 0 ? EAI_NONAME : AddNamed(node, hints, results);
  }
  if (code == 0 && results.empty()) code = EAI_NONAME;
  if (code == 0) *out = results.Release();
  return code;
}

void freeaddrinfo(addrinfo* list) {
  while (list != nullptr) std::free(std::exchange(list, list->ai_next));
}

// Numbers always.
int getnameinfo(const sockaddr* address, socklen_t length, char* host, socklen_t host_size, char* service,
                socklen_t service_size, int flags) {
  if ((flags & NI_NAMEREQD) != 0) return EAI_NONAME;
  const bool four = length >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
  if (!four && (length < sizeof(sockaddr_in6) || address->sa_family != AF_INET6)) return EAI_FAMILY;
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  if (host != nullptr && host_size > 0) {
    char text[INET6_ADDRSTRLEN];
    inet_ntop(address->sa_family, four ? static_cast<const void*>(&v4->sin_addr) : &v6->sin6_addr, text, sizeof(text));
    std::string name = text;
    char zone[IF_NAMESIZE];
    if (!four && v6->sin6_scope_id != 0) {
      const bool named = if_indextoname(v6->sin6_scope_id, zone) != nullptr;
      name += "%" + (named ? std::string(zone) : std::to_string(v6->sin6_scope_id));
    }
    if (name.size() >= host_size) return EAI_OVERFLOW;
    std::memcpy(host, name.c_str(), name.size() + 1);
  }
  if (service != nullptr && service_size > 0) {
    const std::string port = std::to_string(ntohs(four ? v4->sin_port : v6->sin6_port));
    if (port.size() >= service_size) return EAI_OVERFLOW;
    std::memcpy(service, port.c_str(), port.size() + 1);
  }
  return 0;
}

// OpenSSL and c-ares have calls of these that TaskD does not reach; glibc's would bring NSS along.
hostent* gethostbyname(const char*) {
  h_errno = HOST_NOT_FOUND;
  return nullptr;
}
servent* getservbyname(const char*, const char*) { return nullptr; }
int getservbyname_r(const char*, const char*, servent*, char*, size_t, servent** result) {
  *result = nullptr;
  return ENOENT;
}
int getservbyport_r(int, const char*, servent*, char*, size_t, servent** result) {
  *result = nullptr;
  return ENOENT;
}

// In place of c-ares' own (ld's --wrap): also the resolver in gRPC waits as long as resolv.conf allows.
// NOLINTBEGIN(bugprone-reserved-identifier)
int __real_ares_init_options(ares_channel*, ares_options*, int);
int __wrap_ares_init_options(ares_channel* channel, ares_options* given, int mask) {
  ares_options options = given != nullptr ? *given : ares_options{};
  const ares_options patience = Patience();
  if ((mask & (ARES_OPT_TIMEOUT | ARES_OPT_TIMEOUTMS)) == 0) {
    options.timeout = patience.timeout;
    mask |= ARES_OPT_TIMEOUTMS;
  }
  if ((mask & ARES_OPT_TRIES) == 0) {
    options.tries = patience.tries;
    mask |= ARES_OPT_TRIES;
  }
  return __real_ares_init_options(channel, &options, mask);
}

// How gRPC asks for addresses, once for each family.
void __real_ares_gethostbyname(ares_channel, const char*, int, ares_host_callback, void*);
void __wrap_ares_gethostbyname(ares_channel channel, const char* name, int family, ares_host_callback callback,
                               void* argument) {
  struct Asked {
    ares_host_callback callback;
    void* argument;
  };
  __real_ares_gethostbyname(
      channel, name, family,
      [](void* out, int status, int timeouts, hostent* host) {
        const std::unique_ptr<Asked> asked(static_cast<Asked*>(out));
        if (host == nullptr) return asked->callback(asked->argument, status, timeouts, nullptr);
        std::array<char*, kMostAddresses + 1> addresses{};
        for (int i = 0; i < kMostAddresses && host->h_addr_list[i] != nullptr; ++i) addresses[i] = host->h_addr_list[i];
        hostent fewer = *host;
        fewer.h_addr_list = addresses.data();
        asked->callback(asked->argument, status, timeouts, &fewer);
      },
      new Asked{callback, argument});
}

// In place of dlopen(), of which glibc has a copy for itself (ld's --wrap). OpenSSL's configuration may name modules:
// what is built in is what there is.
void* __wrap_dlopen(const char*, int) { return nullptr; }
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
