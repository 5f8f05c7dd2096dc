// `mpirun` on every node of an MPI job whose command runs on every node (DESIGN §8): node 0's starts the real one; the
// others' wait for it and end with its code. The n-th call on a node stands for the n-th on node 0.
//
// The launcher of a node puts a folder in front of PATH in which mpirun and mpiexec are links to this program, and
// answers on a Unix socket: "start\n" -> "N\n", later "ended CODE\n" (node 0); "wait\n" -> "CODE\n" (others).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"

namespace taskd::modes {

// On the loop's thread.
class MpirunFront {
 public:
  // node 0: called when a mpirun begins and when it has ended.
  using OnCall = std::function<void(uint32_t number, bool ended, int code)>;

  // Makes `folder` and the links in it. UNAVAILABLE: what cannot be made, and why. INVALID_ARGUMENT: others could write
  // to the folder, or replace it (common/runtime_dir.h).
  static absl::StatusOr<std::unique_ptr<MpirunFront>> Create(EventLoop* loop, const std::string& folder,
                                                             const std::string& program, bool is_launcher,
                                                             OnCall on_call);
  ~MpirunFront();
  MpirunFront(const MpirunFront&) = delete;
  MpirunFront& operator=(const MpirunFront&) = delete;

  // PATH and the variables by which the front finds this launcher.
  void AddTo(std::map<std::string, std::string>* environment) const;

  // On other nodes: results from node 0. Release ends all waiting: calls that node 0 did not make end with that code.
  void Ended(uint32_t number, int code);
  void Release(int code);

 private:
  struct Caller {
    UniqueFd fd;
    std::string line;
    uint32_t number = 0;  // 0: has not asked
    bool ended = false;
  };

  MpirunFront(EventLoop* loop, std::string folder, bool is_launcher, OnCall on_call);
  void Accept();
  void Read(int fd);
  void OnLine(Caller& caller, const std::string& line);
  bool Answer(Caller& caller);  // true: it has its code
  void AnswerAll();
  void Close(int fd);

  EventLoop* const loop_;
  const std::string folder_;
  const bool is_launcher_;
  const OnCall on_call_;
  UniqueFd listener_;
  std::map<int, Caller> callers_;  // by descriptor
  uint32_t calls_ = 0;
  std::map<uint32_t, int> codes_;
  std::optional<int> released_;
};

// Whether this process was started as such a front.
bool IsMpirunFront(const std::string& program);
// The front itself: blocks, and returns the exit code. May not return: what needs no waiting becomes the real mpirun.
int RunMpirunFront(int argc, char** argv);

}  // namespace taskd::modes
