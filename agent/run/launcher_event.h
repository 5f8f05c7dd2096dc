// What happens to the ranks of a job, as the launchers report it to the one of node 0, and that one to the manager.
#pragma once

#include <cstdint>
#include <string>

namespace taskd::run {

// Why a round or the job ends, for programs to decide by. The texts that go with it are for people.
enum class StopCause : uint8_t {
  kNone,         // the job has succeeded
  kRankExit,     // a rank failed
  kNodeLost,     // a node's launcher was lost
  kTerminated,   // a launcher was sent a signal that ends it, other than SIGINT
  kInterrupted,  // a launcher was sent SIGINT
  kNodeJoined,   // a node joins a job that may have more of them
  kOrdered,      // somebody asked for it: the manager, or the action on a hang
  kTimedOut,     // nodes did not join, or did not stop, in time
};

struct LauncherEvent {
  enum class Kind : uint8_t {
    kStarted,     // one rank
    kExited,      // one rank
    kRestarting,  // the job
    kEnded,       // the job; `code` is its exit code
  };

  Kind kind = Kind::kStarted;
  int round = 0;  // counts starts of the ranks, from 0
  int rank = -1;  // global; -1: not about one rank
  int node = -1;  // group rank; -1: not about one node
  int pid = 0;    // 0: none
  int code = 0;   // 128 + signal where a signal ended it
  int signal = 0;
  std::string reason;   // for people
  int64_t time_ns = 0;  // CLOCK_REALTIME
  int world_size = 0;   // of kStarted: how many ranks the round has; known where the rendezvous is, 0 elsewhere
  StopCause cause = StopCause::kNone;  // of kRestarting and kEnded
};

}  // namespace taskd::run
