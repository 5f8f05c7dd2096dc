// What a node's launcher has found of a hang, as launchers send it to node 0's, and what that makes of all of it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "diagnosis/hang.h"
#include "readers/diagnose_sources.h"
#include "readers/hang_tables.h"

namespace taskd::evidence {

// What NCCL's RAS, asked on one node, says of the whole job.
struct RasEvidence {
  bool has_answered = false;  // false: nobody listens, or what does is of no use
  std::optional<diagnosis::Hang> hang;
  std::vector<std::string> notes;
};

struct NodeEvidence {
  int first_rank = 0;                    // of those that the launcher that sends it has, global
  diagnosis::HangFacts facts;            // of its ranks' dumps, groups as the dumps have them
  std::vector<readers::Source> sources;  // the dumps, and the RAS
  std::optional<RasEvidence> ras;        // nothing: it was not asked, or has not answered yet
};

// JSON on one line. Above about `max_bytes` the frames are left out, then the dumps' facts, and a note says so.
std::string EncodeEvidence(const NodeEvidence& evidence, size_t max_bytes = size_t{3} << 20);
// INVALID_ARGUMENT: not such a text, or beyond what a node may have. Indices are within their lists, ranks those of a
// job.
absl::StatusOr<NodeEvidence> DecodeEvidence(const std::string& json);

// What all nodes have found.
struct Finding {
  static constexpr size_t kMaxSources = 256;

  std::optional<diagnosis::Hang> hang;
  std::vector<std::string> notes;
  std::vector<readers::Source> sources;  // the first kMaxSources
  size_t more_sources = 0;
};

// Of one hang. Not thread-safe.
class EvidenceBook {
 public:
  // In place of what that launcher has sent before.
  void Add(NodeEvidence evidence);
  Finding Judge();

 private:
  readers::HangTables tables_;
  std::map<int, std::pair<int, diagnosis::HangRank>> ranks_;  // with the launcher that has sent it
  std::map<int, std::vector<readers::Source>> sources_;       // by launcher
  std::optional<RasEvidence> ras_;                            // the one that has answered, else the newest with a note
  bool is_full_ = false;                                      // the tables are
};

// One line for people: who holds the job up and which files say so; else what is known.
std::string TextOf(const Finding& finding);

}  // namespace taskd::evidence
