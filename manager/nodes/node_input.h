// One message of a proxy, as it is read from the wire: folds and reports of ranks, which are nearly all that comes, without
// Protobuf's objects.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/rank_report.h"
#include "manager/verdicts/diagnosis_feed.h"
#include "taskd/v1/node.pb.h"

namespace taskd::manager {

struct NodeInput {
  v1::NodeMessage message;                       // anything but folds and ranks
  std::optional<FoldBatch> folds;                // then the message is empty,
  std::optional<std::vector<RankReport>> ranks;  // and so it is then
  absl::Status refusal;                          // not OK: all are empty

  void Clear() { *this = {}; }
};

// A serialized v1::NodeMessage. Refused as proto/built_size.h says: RESOURCE_EXHAUSTED, what it would build takes too much
// memory; INVALID_ARGUMENT, the wire is broken, or there are more ranks than a node has. What of sound folds cannot be read is left out and counted: it costs the
// rank a step, not the node its stream.
void ReadNodeInput(std::string_view wire, NodeInput* input);

}  // namespace taskd::manager
