// The proxy's UNIX socket: takes ranks' hellos and keeps the agents' connections (worker_sdk/include/taskd/hello.h).
// Only processes of the same user and of root are accepted (SO_PEERCRED). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/event_loop.h"
#include "common/frame_buffer.h"
#include "common/unique_fd.h"
#include "proxy/node.h"
#include "taskd/hello.h"

namespace taskd::proxy {

// Answer to a call of the agents' callbacks.
struct AgentAnswer {
  uint64_t id = 0;
  bool ok = false;
  std::string message;
};

// INVALID_ARGUMENT: too long for a UNIX socket, or empty.
absl::Status CheckSocketPath(const std::string& path);

class HelloServer {
 public:
  // `node` outlives this. `on_answer` is called from the server's thread.
  HelloServer(Node* node, std::function<void(const AgentAnswer&)> on_answer);
  ~HelloServer();  // Stop()
  HelloServer(const HelloServer&) = delete;
  HelloServer& operator=(const HelloServer&) = delete;

  // Listens at `path`, which appears once hellos are accepted. A socket file without a server is replaced.
  // INVALID_ARGUMENT: the path is no socket path. ALREADY_EXISTS: another proxy serves it. Else: what the system says.
  absl::Status Start(const std::string& path);
  // Closes everything and removes the socket file.
  void Stop();

  // Has every agent of the node call `name` with `args_json` (empty: none); on_answer gets one answer for the id: the
  // first failure, or success once all have succeeded. Arguments that are not JSON, or too large or deep to be passed
  // on, are a failure. Calls without an answer are the caller's to time out, also those beyond kMaxCalls at a time.
  // Any thread.
  void CallAgents(uint64_t id, const std::string& name, const std::string& args_json);
  static constexpr size_t kMaxCalls = 1024;

 private:
  struct Connection {
    UniqueFd fd;
    EventLoop::TimerId deadline{};              // for its hello
    std::string hello;                          // as far as it has come
    FrameBuffer frames{hello::kMaxFrameBytes};  // an agent's, after it
    std::vector<UniqueFd> passed;               // descriptors that came along
    uint64_t token = 0;                         // of the node; 0: no hello was received here
    bool agent = false;
    std::string output;
  };
  struct Call {
    std::set<const Connection*> waiting;  // for their answers
    std::optional<AgentAnswer> success;
  };

  using Connections = std::map<uint64_t, std::unique_ptr<Connection>>;  // in the order in which they came

  void Run();
  void Accept();
  void PauseAccepting(int error);
  void OnEvent(uint64_t id, uint32_t events);
  // False: the connection is to be closed.
  bool OnReadable(Connection& connection);
  bool OnHello(Connection& connection, hello::Hello hello);
  bool OnAgentInput(Connection& connection);
  bool FlushOutput(Connection& connection);
  void WatchOutput(const Connection& connection);
  void Close(Connections::iterator connection);
  void SendCalls();
  // `answer`: of one of the agents, or empty: it has no such function, or is gone.
  void TakeAnswer(const Connection& connection, uint64_t id, std::optional<AgentAnswer> answer);

  Node* const node_;
  const std::function<void(const AgentAnswer&)> on_answer_;
  std::string path_;
  uint64_t socket_inode_ = 0;
  UniqueFd listener_;
  // The thread's own.
  Connections connections_;
  uint64_t next_connection_ = 0;
  std::map<uint64_t, Call> calls_;
  bool accept_trouble_said_ = false;
  EventLoop::TimerId accept_again_{};

  std::mutex mutex_;
  struct PendingCall {
    uint64_t id;
    std::string frame;
    std::string refusal;  // not empty: the answer, and there is no frame
  };
  std::vector<PendingCall> pending_calls_;  // guarded by mutex_
  EventLoop loop_;
  std::thread thread_;
};

}  // namespace taskd::proxy
