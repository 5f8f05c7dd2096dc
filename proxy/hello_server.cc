#include "proxy/hello_server.h"

#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_limits.h"
#include "common/log.h"
#include "nlohmann/json.hpp"
#include "taskd/own_user.h"

namespace taskd::proxy {
namespace {

constexpr int kMaxConnections = 8192;
constexpr int64_t kHelloDeadlineNs = 5'000'000'000;      // for a connection that sends nothing
constexpr size_t kMaxOutputBytes = size_t{1024} * 1024;  // of an agent that does not read
constexpr size_t kMaxAllOutputBytes = size_t{64} * 1024 * 1024;
constexpr int kMaxPassedFds = 4;
constexpr char kFreshSuffix[] = ".new";  // of the socket until it listens
// Without a descriptor left, a connection that waits makes the listener readable for ever.
constexpr int64_t kAcceptPauseNs = 200'000'000;
// Of a call's arguments and of an agent's answer.
constexpr JsonLimits kJsonLimits = {.bytes = hello::kMaxFrameBytes, .depth = 16, .values = 8192};

bool FindPeer(int fd, ucred& peer) {
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
}

// The same user or root, according to the kernel and not to the peer.
bool PeerTrusted(int fd) {
  ucred peer = {};
  if (!FindPeer(fd, peer)) return false;
  if (IsOwnUserOrRoot(peer.uid)) return true;
  spdlog::warn("refused process {} of user {}: only user {} and root may speak to this proxy", peer.pid, peer.uid,
               geteuid());
  return false;
}

// What is read as a ring lies in memory: a file of /dev/shm, or a memfd. Pages of any other file system come when its
// disk, server or FUSE process gives them, and a reader that waits for them stops every rank's marks. Of huge pages
// libtaskd.so makes none.
absl::Status CheckIsMemory(int fd) {
  struct statfs system = {};
  if (fstatfs(fd, &system) != 0) return absl::ErrnoToStatus(errno, "the segment's file system");
  if (static_cast<uint32_t>(system.f_type) == TMPFS_MAGIC) return absl::OkStatus();
  return absl::InvalidArgumentError("the segment is no file in memory (tmpfs)");
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

bool SomebodyServes(const sockaddr_un& address) {
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
}

}  // namespace

absl::Status CheckSocketPath(const std::string& path) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - sizeof(kFreshSuffix);
  if (!path.empty() && path.size() <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--socket: '", path, "' has ", path.size(), " bytes, a socket path has 1 to ", kMost));
}

HelloServer::HelloServer(Node* node, std::function<void(const AgentAnswer&)> on_answer)
    : node_(node), on_answer_(std::move(on_answer)) {}

HelloServer::~HelloServer() { Stop(); }

absl::Status HelloServer::Start(const std::string& path) {
  if (absl::Status checked = CheckSocketPath(path); !checked.ok()) return checked;
  const sockaddr_un address = AddressOf(path);
  const std::string fresh_path = path + kFreshSuffix;
  const sockaddr_un fresh = AddressOf(fresh_path);
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat("--socket: '", path, "' exists and is not a socket"));
    }
    if (SomebodyServes(address)) {
      return absl::AlreadyExistsError(absl::StrCat("--socket: '", path, "' is served by another proxy"));
    }
  }
  listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Under its own name only when it listens: whoever sees the file can connect.
  unlink(fresh_path.c_str());
  if (!loop_.valid() || !listener_.valid() ||
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&fresh), sizeof(fresh)) != 0 ||
      chmod(fresh_path.c_str(), 0600) != 0 || listen(listener_.get(), 1024) != 0 ||
      stat(fresh_path.c_str(), &info) != 0 || rename(fresh_path.c_str(), path.c_str()) != 0) {
    absl::Status failed = absl::ErrnoToStatus(errno, absl::StrCat("--socket: '", path, "'"));
    unlink(fresh_path.c_str());
    return failed;
  }
  path_ = path;
  socket_inode_ = info.st_ino;
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void HelloServer::Stop() {
  if (!thread_.joinable()) return;
  loop_.Stop();
  thread_.join();
  struct stat info;
  if (lstat(path_.c_str(), &info) == 0 && info.st_ino == socket_inode_) unlink(path_.c_str());
}

void HelloServer::CallAgents(uint64_t id, const std::string& name, const std::string& args_json) {
  PendingCall pending = {id, {}, {}};
  absl::StatusOr<nlohmann::ordered_json> args =
      ParseJson<nlohmann::ordered_json>(args_json.empty() ? "{}" : args_json, kJsonLimits);
  if (args.ok()) {
    nlohmann::ordered_json call = {{"id", id}, {"operator", name}};
    call["args"] = *std::move(args);
    const std::string text = call.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text.size() <= hello::kMaxFrameBytes) {
      AppendWithLength(text, pending.frame);
    } else {
      pending.refusal = absl::StrCat("the call has ", text.size(), " bytes, the limit is ", hello::kMaxFrameBytes);
    }
  } else {
    pending.refusal = absl::StrCat("the call's arguments: ", args.status().message());
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pending_calls_.size() >= kMaxCalls) return;
    pending_calls_.push_back(std::move(pending));
    if (pending_calls_.size() > 1) return;  // the loop knows
  }
  loop_.Post([this] { SendCalls(); });
}

void HelloServer::SendCalls() {
  std::vector<PendingCall> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls.swap(pending_calls_);
  }
  size_t output_bytes = 0;
  if (!calls.empty()) {
    for (const auto& [_, connection] : connections_) output_bytes += connection->output.size();
  }
  for (PendingCall& call : calls) {
    if (!call.refusal.empty()) {
      on_answer_({call.id, false, std::move(call.refusal)});
      continue;
    }
    std::set<const Connection*> agents;
    for (auto& [_, connection] : connections_) {
      if (!connection->agent || connection->output.size() + call.frame.size() > kMaxOutputBytes) continue;
      if (output_bytes + call.frame.size() > kMaxAllOutputBytes) break;
      output_bytes += call.frame.size();
      connection->output += call.frame;
      agents.insert(connection.get());
      WatchOutput(*connection);
    }
    if (agents.empty()) {
      on_answer_({call.id, false, "no agent is connected to this node's proxy"});
    } else {
      calls_[call.id].waiting = std::move(agents);
    }
    // Calls that were left without an answer.
    while (calls_.size() > kMaxCalls) calls_.erase(calls_.begin());
  }
}

void HelloServer::TakeAnswer(const Connection& connection, uint64_t id, std::optional<AgentAnswer> answer) {
  auto found = calls_.find(id);
  if (found == calls_.end() || found->second.waiting.erase(&connection) == 0) return;
  Call& call = found->second;
  if (answer && answer->ok) {
    std::optional<AgentAnswer> success = std::exchange(answer, std::nullopt);
    if (!call.success || call.success->message.empty()) call.success = std::move(success);
  }
  if (!answer && !call.waiting.empty()) return;
  if (!answer)
    answer = call.success ? *call.success
                          : AgentAnswer{id, false, "no agent of this node has a function for it, or it is gone"};
  calls_.erase(found);
  on_answer_(*answer);
}

void HelloServer::Close(Connections::iterator closed) {
  Connection& connection = *closed->second;
  loop_.Cancel(connection.deadline);
  loop_.Remove(connection.fd.get());
  if (connection.agent) {
    std::vector<uint64_t> ids;
    for (const auto& [id, call] : calls_) ids.push_back(id);
    for (uint64_t id : ids) TakeAnswer(connection, id, std::nullopt);
  }
  if (connection.token != 0) node_->Detach(connection.token);
  connections_.erase(closed);
}

void HelloServer::Accept() {
  while (true) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR) continue;
      if (error != EAGAIN) PauseAccepting(error);
      return;
    }
    if (accept_trouble_said_) spdlog::info("--socket: connections are accepted again");
    accept_trouble_said_ = false;
    if (!PeerTrusted(fd.get()) || connections_.size() >= kMaxConnections) continue;
    const uint64_t id = next_connection_++;
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = loop_.RunAfter(kHelloDeadlineNs, [this, id] { Close(connections_.find(id)); });
    loop_.Add(connection->fd.get(), EPOLLIN, [this, id](uint32_t events) { OnEvent(id, events); });
    connections_.emplace(id, std::move(connection));
  }
}

void HelloServer::PauseAccepting(int error) {
  if (!accept_trouble_said_) spdlog::warn("--socket: no connection can be accepted for now: {}", strerror(error));
  accept_trouble_said_ = true;
  loop_.Remove(listener_.get());
  accept_again_ =
      loop_.RunAfter(kAcceptPauseNs, [this] { loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }); });
}

void HelloServer::OnEvent(uint64_t id, uint32_t events) {
  auto found = connections_.find(id);
  Connection& connection = *found->second;
  bool keep = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || OnReadable(connection);
  if (keep && (events & EPOLLOUT) != 0) keep = FlushOutput(connection);
  if (!keep) return Close(found);
  if (connection.token != 0 || connection.agent) loop_.Cancel(connection.deadline);
  WatchOutput(connection);
}

bool HelloServer::OnReadable(Connection& connection) {
  char buffer[4096];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)];
  iovec data = {buffer, sizeof(buffer)};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = recvmsg(connection.fd.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  // Without a descriptor left a rank's segment does not come along. Closing makes the rank try again.
  const bool complete = (message.msg_flags & MSG_CTRUNC) == 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      connection.passed.emplace_back(fd);
    }
  }
  if (got == 0 || !complete || connection.passed.size() > 1) return false;
  const std::string_view bytes(buffer, static_cast<size_t>(got));
  if (connection.agent) {
    connection.frames.Append(bytes);
    return OnAgentInput(connection);
  }
  if (connection.token != 0) return true;  // a rank sends nothing after its hello; anything that comes is dropped
  connection.hello += bytes;
  if (connection.hello.size() < sizeof(hello::Hello)) return true;
  hello::Hello hello;
  memcpy(&hello, connection.hello.data(), sizeof(hello));
  connection.frames.Append(std::string_view(connection.hello).substr(sizeof(hello)));
  connection.hello.clear();
  return OnHello(connection, hello);
}

bool HelloServer::OnHello(Connection& connection, hello::Hello hello) {
  if (hello.magic != hello::kMagic) return false;
  // The kernel's word, and not the peer's. 0: it is in a pid namespace that is not below ours.
  ucred peer = {};
  hello.pid = FindPeer(connection.fd.get(), peer) ? static_cast<uint32_t>(peer.pid) : 0;
  absl::Status status = absl::OkStatus();
  if (hello.version != hello::kVersion) {
    status = absl::FailedPreconditionError(
        absl::StrCat("hello version ", hello.version, ", this proxy speaks ", hello::kVersion));
  } else if (hello.role == hello::kRoleAgent) {
    connection.agent = true;
  } else if (hello.role != hello::kRoleWorker || connection.passed.empty()) {
    status = absl::InvalidArgumentError("unknown role, or a rank without its segment");
  } else {
    status = CheckIsMemory(connection.passed.front().get());
    if (status.ok()) {
      absl::StatusOr<uint64_t> token = node_->Attach(hello, std::move(connection.passed.front()));
      status = token.status();
      if (token.ok()) connection.token = *token;
    }
  }
  connection.passed.clear();
  hello::HelloReply reply = {};
  reply.magic = hello::kMagic;
  reply.version = hello::kVersion;
  const bool taken = absl::IsAlreadyExists(status);  // the node has noted it
  reply.status = status.ok() ? hello::kAccepted : taken ? hello::kTaken : hello::kRefused;
  std::string(status.message()).copy(reply.message, sizeof(reply.message) - 1);
  if (!status.ok() && !taken) spdlog::warn("refused rank {} (pid {}): {}", hello.rank, hello.pid, status.message());
  connection.output.append(reinterpret_cast<const char*>(&reply), sizeof(reply));
  return FlushOutput(connection) && status.ok();
}

bool HelloServer::OnAgentInput(Connection& connection) {
  std::string_view body;
  for (;;) {
    const absl::StatusOr<bool> whole = connection.frames.Next(body);
    if (!whole.ok()) return false;
    if (!*whole) return true;
    absl::StatusOr<nlohmann::json> parsed = ParseJson(body, kJsonLimits);
    if (!parsed.ok()) return false;
    nlohmann::json& reply = *parsed;
    if (!reply.is_object() || !reply["id"].is_number_unsigned() || !reply["ok"].is_boolean()) return false;
    AgentAnswer answer = {reply["id"].get<uint64_t>(), reply["ok"].get<bool>(), {}};
    if (reply["message"].is_string()) answer.message = reply["message"].get<std::string>();
    // Who has no such function leaves it to the others: a rank to the launcher, or to the next rank.
    const bool declined = !answer.ok && reply["declined"].is_boolean() && reply["declined"].get<bool>();
    const uint64_t id = answer.id;
    TakeAnswer(connection, id, declined ? std::nullopt : std::optional(std::move(answer)));
  }
}

bool HelloServer::FlushOutput(Connection& connection) {
  if (connection.output.empty()) return true;
  ssize_t sent = send(connection.fd.get(), connection.output.data(), connection.output.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection.output.erase(0, sent);
  return true;
}

void HelloServer::WatchOutput(const Connection& connection) {
  loop_.Change(connection.fd.get(), connection.output.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void HelloServer::Run() {
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  loop_.Run();
  loop_.Cancel(accept_again_);
  loop_.Remove(listener_.get());
  listener_.reset();
  for (auto& [_, connection] : connections_) {
    loop_.Cancel(connection->deadline);
    loop_.Remove(connection->fd.get());
  }
  connections_.clear();
}

}  // namespace taskd::proxy
