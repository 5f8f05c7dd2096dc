// Supervision of the job by its manager: the manager gets the events of the ranks, and a hang that it notices is
// investigated before anything is ended. The launcher of group rank 0 reports events and gets notices; every launcher
// gives its ranks a folder for their stacks and collects them.
//
// A hang is investigated in a thread of its own, so that the notice of its end is received meanwhile: stacks of all ranks
// are asked for, waited for (5 s) and merged; they go to the log, to a file and to the manager. Then comes the action, if
// the manager confirms that this very hang is still open. What communication libraries tell of it is looked for as long
// as it lasts (hang_follower.h); an action that ends ranks waits for RAS's answer, which goes with them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/evidence/evidence_reader.h"
#include "agent/run/hang_follower.h"
#include "agent/run/launcher_observer.h"
#include "agent/run/supervision_client.h"
#include "agent/stacks/stack_collector.h"
#include "common/storage_thread.h"

namespace taskd::run {

// Thread safety: any thread.
class RunSupervision {
 public:
  struct Options {
    std::string hang_action = "report";  // report, restart, stop
    std::string file_folder;             // for the whole stacks; empty: the runtime folder's "stacks"
    std::string stack_folder;            // made for stacks under way; empty, or it cannot be made: a fresh one
    Environment environment;             // of the ranks
    bool ras = true;                     // NCCL's RAS may be asked
  };

  explicit RunSupervision(const Options& options);
  ~RunSupervision();  // what is queued is given a second to be sent
  RunSupervision(const RunSupervision&) = delete;
  RunSupervision& operator=(const RunSupervision&) = delete;

  // The job that this launcher runs. With empty functions: nothing can be asked of it (any more); when that has
  // returned, none of those before is being called.
  void SetControl(const LauncherControl& control);
  void SetAssignment(const Assignment& assignment);
  // At most once: who takes events and gives notices to OnNotice(). Until then events are kept, as many as a start has.
  // Starts a thread, so not before the launcher has forked what it forks.
  void SetClient(std::unique_ptr<SupervisionClient> client);
  bool has_client();

  // From the launchers.
  void OnEvent(const LauncherEvent& event);
  void OnWaiting(const std::string& waits_for);
  void OnStacks(int id, const std::string& text);
  void OnEvidence(int hang, const std::string& text);
  // From the manager. Returns at once.
  void OnNotice(const v1::HangNotice& notice);

  // Stacks of this node's ranks (local rank -> pid), as OnStacks() takes them; within 2 s.
  std::string Collect(const std::map<int, pid_t>& pids);
  // What is new of a hang on this node, as OnEvidence() takes it; at once.
  std::string Look(const LookMessage& message, const std::map<int, pid_t>& pids);
  // The folder that ranks get as TASKD_STACK_DIR; empty where none could be made.
  const std::string& stack_folder() const { return folder_; }

 private:
  void Investigate();
  // Begins to ask for evidence of this hang; ends what was begun for another one.
  void FollowHang(const v1::HangNotice& notice);
  void EndFollowing();
  void ReportEvidence(uint64_t hang, const evidence::Finding& finding);
  // What all nodes answer, merged, to the log, the manager and, without waiting for it, a file.
  void ReportStacks(const v1::HangNotice& notice);
  std::vector<stacks::RankStacks> Gather(int id, int nodes);
  void Act(const v1::HangNotice& notice);
  // Waits while ranks are at work, and while the manager cannot be asked. False: the hang is over, or this object ends.
  bool MayAct(uint64_t hang);
  void Send(v1::SupervisionEvent event);

  const Options options_;
  std::string folder_;

  evidence::EvidenceReader evidence_reader_;  // of Look() alone
  StorageThread files_;

  std::mutex control_mutex_;  // guards control_, also while one of its functions runs; never taken under mutex_
  LauncherControl control_;

  std::mutex mutex_;  // guards from here
  std::condition_variable changed_;
  bool stopping_ = false;
  Assignment assignment_;
  int started_round_ = -1;                   // that was reported
  std::vector<v1::SupervisionEvent> early_;  // from before there was a client
  std::string waits_for_;
  std::map<int, std::vector<std::string>> answers_;  // by id: one text a node
  int waiting_for_ = -1;
  std::unique_ptr<SupervisionClient> client_;
  std::unique_ptr<HangFollower> follower_;  // of the open hang; the investigator makes and ends it
  uint64_t open_hang_ = 0;                  // by the newest notice; 0: none
  std::optional<v1::HangNotice> notice_;    // the newest, for the investigator

  std::thread investigator_;  // last: it uses the others
};

}  // namespace taskd::run
