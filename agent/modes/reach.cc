#include "agent/modes/reach.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace taskd::modes {
namespace {

constexpr int64_t kPauseNs = 500'000'000;
constexpr int64_t kConnectNs = 5'000'000'000;
constexpr size_t kAtOnce = 16;
constexpr size_t kShown = 8;

std::string FirstIpv4(const std::vector<process::SocketAddress>& addresses) {
  for (const process::SocketAddress& address : addresses) {
    if (address.storage.ss_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)) == nullptr ? "" : text;
  }
  return "";
}

}  // namespace

// ---- Names

NameWait::NameWait(EventLoop* loop, std::vector<std::string> names, Done done)
    : loop_(loop), done_(std::move(done)), open_(names.begin(), names.end()), resolver_(loop) {
  timers_.push_back(loop_->RunAfter(0, [this] { Next(); }));
}

NameWait::~NameWait() {
  for (EventLoop::TimerId timer : timers_) loop_->Cancel(timer);
}

void NameWait::Next() {
  timers_.clear();
  if (open_.empty()) {
    const Done done = done_;  // it may destroy this
    done(std::move(found_));
    return;
  }
  resolver_.Resolve({open_.front(), 0}, [this](absl::StatusOr<std::vector<process::SocketAddress>> addresses) {
    const std::string name = open_.front();
    open_.pop_front();
    if (addresses.ok()) {
      const std::string ipv4 = FirstIpv4(*addresses);
      found_[name] = ipv4.empty() ? name : ipv4;
      failed_in_a_row_ = 0;
    } else {
      last_error_ = std::string(addresses.status().message());
      open_.push_back(name);
      ++failed_in_a_row_;
    }
    // A pause after each round in which no name resolved.
    const bool pause = failed_in_a_row_ >= open_.size() && !open_.empty();
    if (pause) failed_in_a_row_ = 0;
    timers_.push_back(loop_->RunAfter(pause ? kPauseNs : 0, [this] { Next(); }));
  });
}

std::string NameWait::missing() const {
  const size_t shown = std::min(open_.size(), kShown);
  return absl::StrCat(absl::StrJoin(open_.begin(), open_.begin() + static_cast<ptrdiff_t>(shown), ", "),
                      open_.size() > shown ? absl::StrCat(" and ", open_.size() - shown, " more") : "",
                      open_.size() == 1 ? " does not resolve" : " do not resolve",
                      last_error_.empty() ? "" : absl::StrCat(" (", last_error_, ")"));
}

// ---- Ports

PortWait::PortWait(EventLoop* loop, HostPort address, std::function<void()> done)
    : loop_(loop), address_(std::move(address)), done_(std::move(done)), resolver_(loop) {
  Resolve();
}

PortWait::~PortWait() { Close(); }

void PortWait::Close() {
  if (timer_) loop_->Cancel(*timer_);
  timer_.reset();
  if (fd_.valid()) loop_->Remove(fd_.get());
  fd_.reset();
}

void PortWait::Resolve() {
  Close();
  resolver_.Resolve(address_, [this](absl::StatusOr<std::vector<process::SocketAddress>> addresses) {
    if (!addresses.ok()) {
      Retry(absl::StrCat("the name does not resolve: ", std::string(addresses.status().message())));
    } else {
      Connect(addresses->front());
    }
  });
}

void PortWait::Connect(process::SocketAddress address) {
  fd_.reset(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_.valid()) return Retry(std::strerror(errno));
  if (connect(fd_.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd_.reset();
    return Retry(std::strerror(error));
  }
  loop_->Add(fd_.get(), EPOLLOUT, [this](uint32_t) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    Connected(error);
  });
  timer_ = loop_->RunAfter(kConnectNs, [this] { Connected(ETIMEDOUT); });
}

void PortWait::Connected(int error) {
  Close();
  if (error != 0) return Retry(std::strerror(error));
  const std::function<void()> done = done_;  // it may destroy this
  done();
}

void PortWait::Retry(std::string why) {
  last_error_ = std::move(why);
  timer_ = loop_->RunAfter(kPauseNs, [this] { Resolve(); });
}

// ---- Remote start

RemoteStartWait::RemoteStartWait(EventLoop* loop, process::ChildProcesses* children, Options options,
                                 std::function<void()> done)
    : loop_(loop),
      children_(children),
      options_(std::move(options)),
      done_(std::move(done)),
      queue_(options_.hosts.begin(), options_.hosts.end()) {
  timers_.push_back(loop_->RunAfter(0, [this] { Fill(); }));
}

RemoteStartWait::~RemoteStartWait() {
  *alive_ = false;
  for (EventLoop::TimerId timer : timers_) loop_->Cancel(timer);
  for (const auto& [name, host] : under_way_) children_->Signal(host.pid, SIGTERM);
}

void RemoteStartWait::Fill() {
  while (under_way_.size() < kAtOnce && !queue_.empty()) {
    const std::string name = queue_.front();
    queue_.pop_front();
    Host& host = under_way_[name];
    if (options_.port == 0) {
      TryAgent(name);
      continue;
    }
    host.port = std::make_unique<PortWait>(loop_, HostPort{name, options_.port}, [this, name] {
      if (options_.port_answers) options_.port_answers(name);
      TryAgent(name);
    });
  }
  if (!under_way_.empty() || !queue_.empty()) return;
  const std::function<void()> done = done_;  // it may destroy this
  done();
}

void RemoteStartWait::TryAgent(const std::string& name) {
  Host& host = under_way_[name];
  host.stage = Stage::kSsh;
  std::vector<std::string> argv = options_.agent;
  argv.insert(argv.end(), {name, "true"});
  // Reported once, when the patience is over: a line on stderr for each try would be hundreds.
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) host.words.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  absl::StatusOr<pid_t> pid = children_->Start(
      argv, options_.environment,
      [this, name, alive = std::weak_ptr<bool>(alive_)](int code) {
        const std::shared_ptr<bool> here = alive.lock();
        if (here && *here) AgentEnded(name, code);
      },
      -1, theirs.get());
  if (pid.ok()) {
    host.pid = *pid;
    return;
  }
  host.error = std::string(pid.status().message());
  timers_.push_back(loop_->RunAfter(kPauseNs, [this, name] { TryAgent(name); }));
}

void RemoteStartWait::AgentEnded(const std::string& name, int code) {
  if (code == 0) {
    under_way_.erase(name);
    return Fill();
  }
  Host& host = under_way_[name];
  host.pid = 0;
  char buffer[4096];
  const ssize_t got = host.words.valid() ? read(host.words.get(), buffer, sizeof(buffer)) : 0;
  std::string words(absl::StripAsciiWhitespace(absl::string_view(buffer, got > 0 ? static_cast<size_t>(got) : 0)));
  words.erase(std::remove(words.begin(), words.end(), '\r'), words.end());
  std::replace(words.begin(), words.end(), '\n', ' ');
  host.error = absl::StrCat("'", absl::StrJoin(options_.agent, " "), " ", name, " true' ended with code ", code,
                            words.empty() ? "" : ", ", words);
  timers_.push_back(loop_->RunAfter(2 * kPauseNs, [this, name] { TryAgent(name); }));
}

std::string RemoteStartWait::missing() const {
  std::vector<std::string> texts;
  for (const auto& [name, host] : under_way_) {
    if (texts.size() >= kShown) break;
    const auto known = options_.names.find(name);
    const std::string shown = known == options_.names.end() || known->second == name
                                  ? absl::StrCat(name, " (")
                                  : absl::StrCat(known->second, " (", name, ", ");
    texts.push_back(host.stage == Stage::kTcp
                        ? absl::StrCat(shown, "tcp port ", options_.port, ": ", host.port->last_error(), ")")
                        : absl::StrCat(shown, "ssh: ", host.error, ")"));
  }
  const size_t more = under_way_.size() + queue_.size() - texts.size();
  return absl::StrCat("no way to start processes on ", absl::StrJoin(texts, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace taskd::modes
