// The launcher as an agent of its node: the line to the proxy on which the manager asks for the node's ranks
// (taskd.v1.Control.CallAgents; bytes: worker_sdk/include/taskd/hello.h). The same operators that a framework's plug-in
// registers with register_func, with the same arguments.
//
//   KILL_WORKER  [[-1]] or none    ends the node's ranks; that is no failure, and the launcher goes on
//   START_ALL_WORKER               starts them again, in the place in the job that they had
//   START_WORKER_LIST  [[0, 3]]    those local ranks of them
//   MONITOR  [[0, 3]], [[-1]] or none
//                                  {"0":{"pid":4711,"status":null,"global_rank":8},..}, status: exit code once it ended
//   RESTART                        restarts the ranks of all nodes
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/event_loop.h"
#include "common/frame_buffer.h"
#include "common/unique_fd.h"

namespace taskd::run {

// What the launcher can do. All are called on the loop's thread; `done` once, there too, at once or later.
struct AgentOperations {
  struct RankState {
    pid_t pid = 0;
    std::optional<int> exit_code;  // 128 + signal for a signal; none while it runs
    int global_rank = 0;
  };
  using Done = std::function<void(const absl::Status&)>;

  std::function<void(Done done)> kill_ranks;                                   // done when nothing of them runs
  std::function<void(const std::vector<int>& local_ranks, Done)> start_ranks;  // empty: all of the node
  std::function<std::map<int, RankState>()> state;                             // by local rank, of all of the node
  std::function<void(Done done)> restart;                                      // done when it is under way
};

// Keeps the line from its construction on, again and again while there is no proxy. On the loop's thread.
class AgentLine {
 public:
  static constexpr int64_t kRetryNs = 500'000'000;
  static constexpr int64_t kRetryRefusedNs = 60'000'000'000;
  static constexpr int64_t kHandshakeNs = 5'000'000'000;

  // `loop` must outlive this. `socket`: the proxy's, as TASKD_SOCKET spells it.
  AgentLine(EventLoop* loop, std::string socket, AgentOperations operations);
  ~AgentLine();
  AgentLine(const AgentLine&) = delete;
  AgentLine& operator=(const AgentLine&) = delete;

 private:
  void Connect();
  void OnReady(uint32_t events);
  bool Read();  // false: the line is over
  bool TakeHelloReply(std::string_view bytes);
  bool TakeFrames();
  void Answer(std::string_view frame);
  void Send(std::string_view bytes);
  void Write();
  void Close(int64_t retry_ns);
  void SetTimer(int64_t delay_ns, std::function<void()> callback);

  EventLoop* const loop_;
  const std::string socket_;
  const AgentOperations operations_;
  UniqueFd fd_;
  bool greeted_ = false;  // the proxy has accepted us
  bool said_ = false;     // that it has not
  std::string reply_;     // to our hello, as far as it has come
  FrameBuffer in_;        // what follows it
  std::string out_;
  std::optional<EventLoop::TimerId> timer_;
  // Answers that come late are for this line only; empty once it is closed.
  std::shared_ptr<AgentLine*> current_;
};

}  // namespace taskd::run
