// How the launchers of a job find together, restart together and end together. Pure: no I/O, no threads, time is given.
//
// The launcher that hosts the root store runs one Rendezvous. Every launcher, that one too, keeps one connection to it
// (common/store/server.h, LauncherHandler) and says what happens on its node; the rendezvous decides for all:
//
//   Join ────────────► waits until all are there, or min_nodes and the last call is over ───► Start to all
//   Succeeded ───────► when all nodes have ──────────────────────────────────────────────────► End(0)
//   Failed ──────────► restarts left: Stop to all, then Stopped from all, then Start;  none: End(code of the first
//   failure) connection gone ─► the node is lost: at least min_nodes left (elastic): Stop, then Start with who is
//   there, at no cost of
//                      a restart; static: as a failure, and the same node rank may join again before the next Start
//   Join (elastic, while running, fewer than max_nodes) ──► Stop, Start with one more, at no cost of a restart
//   Leave (SIGTERM at a launcher) ─► static: End(128 + signal); elastic: as lost
//
// A failure of a rank is often the consequence of another node's loss or failure: before it decides, the rendezvous
// waits `settle_ns` for what else comes. The first failure is the one that came first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/run/worker_group.h"

namespace taskd {

// One node, as it presents itself.
struct NodeInfo {
  std::string run_id;
  std::string version;
  std::string host;    // what people call it (local_addr, else the host's name)
  int pid = 0;         // of the launcher
  int node_rank = -1;  // static: 0..nodes-1; elastic: -1, the rendezvous gives one
  int local_world_size = 0;
  std::string role;
  int min_nodes = 0;
  int max_nodes = 0;
  int max_restarts = 0;
  bool hosts_store = false;  // becomes group rank 0 of an elastic job
};

struct Assignment {
  int round = 0;          // counts Starts
  int restart_count = 0;  // failures that were restarted from (TORCHELASTIC_RESTART_COUNT)
  int group_rank = 0;
  int group_world_size = 0;
  int rank_base = 0;  // global rank of the node's local rank 0
  int world_size = 0;
  int role_rank_base = 0;
  int role_world_size = 0;
  std::string manager;  // HOST:PORT; empty: none
  std::string tier;     // HOST:PORT of the store that this node's tier asks; empty: the root (tiers of tiers)
  std::vector<std::string> hosts;  // by group rank
};

}  // namespace taskd
