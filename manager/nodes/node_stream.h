// One proxy's stream, whatever carries it: what it says to the cores, and what they say to it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "manager/nodes/fold_receipts.h"
#include "manager/nodes/node_input.h"
#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"
#include "taskd/v1/node.pb.h"

namespace taskd::manager {

// Take() and Ended() come from one thread at a time, Next() from any. A proxy that does not read holds nobody up: what
// it was not sent yet is one newest state and a bounded number of calls.
class NodeStream final : public NodeSink {
 public:
  // `ready`: Next() may have something; on any thread, with locks of the core's, until the destructor returns.
  NodeStream(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis, std::string peer,
             std::function<void()> ready);
  ~NodeStream();  // the stream is over
  NodeStream(const NodeStream&) = delete;
  NodeStream& operator=(const NodeStream&) = delete;

  // A message of the proxy's. Not OK: the stream ends with that.
  absl::Status Take(NodeInput& in);
  // The proxy says nothing more; the stream ends with this.
  absl::Status Ended();
  // Fills a cleared message with what is to be sent next. False: there is nothing. Not OK: the stream ends with that.
  absl::StatusOr<bool> Next(v1::ManagerMessage* message);
  bool has_hello() const { return stream_ != 0; }  // on Take()'s thread

  void Wanted(const SwitchState& state) override;
  void Call(const AgentCall& call) override;
  void Close(const std::string& reason) override;

 private:
  absl::Status TakeFirst(const NodeInput& in);
  absl::Status TakeMessage(const v1::NodeMessage& in, SteadyTime now);
  absl::Status TakeHello(const v1::NodeHello& hello);
  absl::Status TakeRanks(std::vector<RankReport> ranks, SteadyTime now);
  void TakeFolds(FoldBatch folds, SteadyTime now);
  void ConfirmFolds(SteadyTime now);
  void FeedDiagnosis(const std::vector<RankReport>& ranks);
  void Leave();

  const std::shared_ptr<ManagerCore> core_;
  const std::shared_ptr<DiagnosisCore> diagnosis_;
  const std::string peer_;
  const std::function<void()> ready_;
  std::vector<RankPresence> presence_;  // as reported last
  uint64_t stream_ = 0;                 // 0: no hello yet
  int node_rank_ = 0;
  bool left_ = false;
  FoldReceipts receipts_;
  bool confirms_ = false;  // the proxy wants to know how many have come

  std::mutex mutex_;  // guards all below; taken after the core's, never before it
  uint64_t folds_said_ = 0;
  bool folds_unsaid_ = false;  // the count; 0 goes before all else
  std::optional<SwitchState> wanted_;
  std::deque<AgentCall> calls_;
  absl::Status end_;  // not OK: it is to end with that
};

}  // namespace taskd::manager
