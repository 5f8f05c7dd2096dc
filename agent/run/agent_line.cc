#include "agent/run/agent_line.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "common/foreign_owner.h"
#include "common/json_limits.h"
#include "common/log.h"
#include "common/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "taskd/hello.h"
#include "taskd/own_user.h"

namespace taskd::run {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxAgentTextBytes = 8 * 1024;          // stays below a frame however it is escaped
constexpr size_t kMaxOutputBytes = size_t{1024} * 1024;  // to a proxy that does not read
// As a proxy lets pass. Whoever has taken its socket's place may send anything, and to copy what is deep recurses.
constexpr JsonLimits kJsonLimits = {.bytes = hello::kMaxFrameBytes, .depth = 16, .values = 8192};

// A list of local ranks as plug-ins take it: [[0, 3]]; [[-1]], [] or nothing: all, which is empty here.
absl::StatusOr<std::vector<int>> LocalRanks(const Json& request) {
  const Json arguments = request.value("args", Json::object());
  if (arguments.is_null()) return std::vector<int>();
  if (!arguments.is_object()) return absl::InvalidArgumentError("args is not an object");
  for (const auto& [key, value] : arguments.items()) {
    if (key == "kwargs" && value.is_object() && value.empty()) continue;
    if (key != "args" || !value.is_array() || value.size() > 1) {
      return absl::InvalidArgumentError(R"(args may only be {"args":[[local rank, ...]]})");
    }
  }
  const Json list = arguments.value("args", Json::array());
  if (list.empty()) return std::vector<int>();
  if (!list[0].is_array()) return absl::InvalidArgumentError("args: the first argument is not a list of local ranks");
  std::vector<int> ranks;
  for (const Json& rank : list[0]) {
    // Unsigned ones first: as a signed one the greatest would be -1, which means all.
    const bool is_too_great = rank.is_number_unsigned() && rank.get<uint64_t>() > INT16_MAX;
    if (!rank.is_number_integer() || is_too_great || rank.get<int64_t>() < -1) {
      return absl::InvalidArgumentError(fmt::format("args: {} is not a local rank", CutUtf8(rank.dump(), 64)));
    }
    ranks.push_back(rank.get<int>());
  }
  if (ranks == std::vector<int>{-1}) return std::vector<int>();
  if (ranks.empty()) return absl::InvalidArgumentError("args: the list of local ranks is empty; [-1] means all");
  return ranks;
}

absl::Status CheckKnown(const std::vector<int>& ranks, const std::map<int, AgentOperations::RankState>& state) {
  for (int rank : ranks) {
    if (state.count(rank) == 0) {
      return absl::InvalidArgumentError(
          fmt::format("args: {} is no local rank of this node; it has {}", rank, state.size()));
    }
  }
  return absl::OkStatus();
}

std::string StateJson(const std::vector<int>& wanted, const std::map<int, AgentOperations::RankState>& state) {
  Json json = Json::object();
  for (const auto& [local_rank, rank] : state) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), local_rank) == wanted.end()) continue;
    json[std::to_string(local_rank)] = {{"pid", rank.pid},
                                        {"status", rank.exit_code ? Json(*rank.exit_code) : Json()},
                                        {"global_rank", rank.global_rank}};
  }
  return json.dump();
}

// Does what `request` asks for; `reply` is called once, at once or later.
void Perform(const AgentOperations& operations, const Json& request,
             const std::function<void(const absl::StatusOr<std::string>&)>& reply) {
  const std::string operation =
      request.contains("operator") && request["operator"].is_string() ? request["operator"].get<std::string>() : "";
  auto done = [reply](const absl::Status& status) {
    status.ok() ? reply(std::string()) : reply(absl::StatusOr<std::string>(status));
  };
  absl::StatusOr<std::vector<int>> ranks = LocalRanks(request);
  if (!ranks.ok()) return reply(ranks.status());
  const std::map<int, AgentOperations::RankState> state = operations.state();
  if (absl::Status known = CheckKnown(*ranks, state); !known.ok()) return reply(known);
  if (operation == "MONITOR") return reply(StateJson(*ranks, state));
  if (operation == "START_WORKER_LIST") {
    if (ranks->empty()) return reply(absl::InvalidArgumentError("args: a list of local ranks is missing"));
    return operations.start_ranks(*ranks, done);
  }
  if (!ranks->empty()) {
    return reply(absl::InvalidArgumentError(fmt::format("{} is for all ranks of a node, not for some", operation)));
  }
  if (operation == "KILL_WORKER") return operations.kill_ranks(done);
  if (operation == "START_ALL_WORKER") return operations.start_ranks({}, done);
  if (operation == "RESTART") return operations.restart(done);
  reply(absl::UnimplementedError(fmt::format("unknown operator {:.64}", operation)));
}

}  // namespace

AgentLine::AgentLine(EventLoop* loop, std::string socket, AgentOperations operations)
    : loop_(loop), socket_(std::move(socket)), operations_(std::move(operations)), in_(hello::kMaxFrameBytes) {
  Connect();
}

AgentLine::~AgentLine() {
  Close(0);
  if (timer_) loop_->Cancel(*timer_);
}

void AgentLine::SetTimer(int64_t delay_ns, std::function<void()> callback) {
  if (timer_) loop_->Cancel(*timer_);
  timer_ = loop_->RunAfter(delay_ns, [this, callback = std::move(callback)] {
    timer_.reset();
    callback();
  });
}

void AgentLine::Close(int64_t retry_ns) {
  if (fd_.valid()) loop_->Remove(fd_.get());
  fd_.reset();
  greeted_ = false;
  reply_.clear();
  in_.Clear();
  out_.clear();
  if (current_) *current_ = nullptr;
  current_.reset();
  SetTimer(retry_ns, [this] { Connect(); });
}

void AgentLine::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;  // the proxy reports it
  socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  fd_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_.valid() || connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    fd_.reset();
    SetTimer(kRetryNs, [this] { Connect(); });
    return;
  }
  loop_->Add(fd_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !IsOwnUserOrRoot(peer.uid)) {
    if (!said_) spdlog::warn("no agent line: the socket {} {}", socket_, ForeignOwner(peer.uid));
    said_ = true;
    return Close(kRetryRefusedNs);
  }
  current_ = std::make_shared<AgentLine*>(this);
  hello::Hello hello{};
  hello.magic = hello::kMagic;
  hello.version = hello::kVersion;
  hello.role = hello::kRoleAgent;
  hello.rank = -1;
  hello.local_rank = -1;
  hello.pid = static_cast<uint32_t>(getpid());
  SetTimer(kHandshakeNs, [this] { Close(kRetryNs); });
  Send({reinterpret_cast<const char*>(&hello), sizeof(hello)});
}

void AgentLine::OnReady(uint32_t events) {
  if ((events & EPOLLOUT) != 0) Write();
  if (fd_.valid() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !Read() && fd_.valid()) Close(kRetryNs);
}

bool AgentLine::Read() {
  char buffer[4096];
  const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  const std::string_view bytes(buffer, static_cast<size_t>(got));
  if (!greeted_) return TakeHelloReply(bytes);
  in_.Append(bytes);
  return TakeFrames();
}

bool AgentLine::TakeHelloReply(std::string_view bytes) {
  hello::HelloReply reply;
  reply_ += bytes;
  if (reply_.size() < sizeof(reply)) return true;
  memcpy(&reply, reply_.data(), sizeof(reply));
  if (reply.magic != hello::kMagic || reply.version != hello::kVersion || reply.status != hello::kAccepted) {
    reply.message[sizeof(reply.message) - 1] = '\0';
    if (!said_) spdlog::warn("no agent line: the proxy refused it: {}", reply.message);
    said_ = true;
    Close(kRetryRefusedNs);
    return false;
  }
  greeted_ = true;
  said_ = false;
  if (timer_) loop_->Cancel(*timer_);
  timer_.reset();
  in_.Append(std::string_view(reply_).substr(sizeof(reply)));
  reply_.clear();
  return TakeFrames();
}

bool AgentLine::TakeFrames() {
  // An answer may find the line broken and close it.
  const std::shared_ptr<AgentLine*> line = current_;
  while (*line != nullptr) {
    std::string_view frame;
    const absl::StatusOr<bool> whole = in_.Next(frame);
    if (!whole.ok()) return false;
    if (!*whole) return true;
    Answer(frame);
  }
  return false;
}

void AgentLine::Answer(std::string_view frame) {
  const absl::StatusOr<Json> parsed = ParseJson<Json>(frame, kJsonLimits);
  const Json request = parsed.ok() ? *parsed : Json();
  if (!request.is_object() || !request.contains("id") || !request["id"].is_number_unsigned()) {
    spdlog::warn("a request of the proxy is left out: it is not an object with an id");
    return;
  }
  const auto id = request["id"].get<uint64_t>();
  Perform(operations_, request, [line = current_, id](const absl::StatusOr<std::string>& result) {
    if (*line == nullptr) return;
    std::string message = result.ok() ? *result : std::string(result.status().message());
    CutUtf8(&message, kMaxAgentTextBytes);
    const Json answer = {{"id", id}, {"ok", result.ok()}, {"message", std::move(message)}};
    const std::string text = answer.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string framed;
    AppendWithLength(text, framed);
    (*line)->Send(framed);
  });
}

void AgentLine::Send(std::string_view bytes) {
  out_ += bytes;
  Write();
}

void AgentLine::Write() {
  while (!out_.empty()) {
    const ssize_t sent = send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      out_.erase(0, static_cast<size_t>(sent));
    } else if (errno != EINTR) {
      break;
    }
  }
  if (!out_.empty() && (errno != EAGAIN || out_.size() > kMaxOutputBytes)) return Close(kRetryNs);
  loop_->Change(fd_.get(), out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

}  // namespace taskd::run
