// The result of a diagnosis: DESIGN §4.5 as types. `ids` are global ranks for rank and group, node ranks for node,
// pairs for link, empty for job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace taskd::diagnosis {

enum class Scope : uint8_t { kRank, kNode, kLink, kGroup, kJob };
enum class Cause : uint8_t {
  kCompute,
  kMemory,
  kDataloader,
  kHost,
  kGc,
  kCheckpoint,
  kNetwork,
  kIntraNodeLink,
  kPpLink,
  kFabric,
  kConfig,
  kUnknown,
};
inline constexpr int kCauses = 12;
enum class JobState : uint8_t { kUnknown, kOk, kSlow };
enum class NoteKind : uint8_t {
  kDesign,
  kRotation,
  kNoData,
  kShort,
  kCoverage,
  kRestless,
  kNotComparable,
  kLoad,
  kOff
};

// As in the JSON: "rank", "intra_node_link", "no_data", ...
const char* Name(Scope scope);
const char* Name(Cause cause);
const char* Name(JobState state);
const char* Name(NoteKind kind);

struct Link {
  int a = 0, b = 0;  // global ranks

  friend bool operator==(const Link&, const Link&) = default;
};

// One number that the verdict rests on; times in ms.
struct Evidence {
  std::string feature;   // "own_time", "dataloader", "transfer", ...
  double value = 0;      // mean over the steps
  double reference = 0;  // what the peers had in them, or the entity itself before
  int peers = 0;         // 0: its own past is the reference
  double z = 0;          // deviation in standard deviations of the noise
  int64_t first_step = 0, last_step = 0;

  friend bool operator==(const Evidence&, const Evidence&) = default;
};

struct Alternative {
  Scope scope = Scope::kRank;
  std::vector<int> ids;
  std::vector<Link> links;
  double probability = 0;
  Cause cause = Cause::kUnknown;  // where it is another one than the verdict's

  friend bool operator==(const Alternative&, const Alternative&) = default;
};

// A node that a verdict accuses, or that has a rank that it accuses.
struct AccusedNode {
  int rank = 0;  // of the node
  std::string host;
  std::string pod;        // empty: not in a pod
  std::string node_name;  // what the scheduler calls it; empty: not known, or not certain

  friend bool operator==(const AccusedNode&, const AccusedNode&) = default;
};

struct Verdict {
  uint64_t id = 0;  // the same through its life
  Scope scope = Scope::kRank;
  std::vector<int> ids;     // all but link
  std::vector<Link> links;  // of link
  std::vector<Alternative> alternatives;
  Cause cause = Cause::kUnknown;
  bool open = true;
  bool left = false;      // cleared because whom it accuses is not part of the job any more
  bool unjudged = false;  // neither open nor cleared: the marks that it rests on ended
  int64_t since_step = 0;
  uint64_t since_ns = 0;        // Unix, by the reference node's clock
  int64_t last_step = 0;        // the last step it was seen in; of one that is not open the step before that was so
  double slowdown = 1;          // of the job's step: with / without, means of the same steps; 1: not known
  double cost_ms_per_step = 0;  // what a step would be shorter without it
  // Of these two: where they lie with 95 %. A slowdown has no end (infinite) where the whole step may be its doing.
  std::array<double, 2> slowdown_interval = {1, 1};
  std::array<double, 2> cost_interval_ms = {0, 0};
  double confidence = 0;  // 0 to 1
  std::vector<Evidence> evidence;
  std::string text;                // one sentence
  std::vector<AccusedNode> nodes;  // by rank, of rank and node; the engine leaves it empty, its user knows the nodes

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// "open", "cleared" or "unjudged".
const char* StateName(const Verdict& verdict);

struct Note {
  NoteKind kind = NoteKind::kShort;
  std::string text;
  int64_t since_step = -1;  // -1: not known, or since the first
  int64_t until_step = -1;  // -1: now

  friend bool operator==(const Note&, const Note&) = default;
};

// What the marks show of one rank's time.
struct RankCoverage {
  int rank = 0;
  double ratio = 0;         // of its steps: the share that communication marks explain
  bool sufficient = false;  // they show all its waits: the rest is its own time
  double resolution = 0;    // as Resolution::ratio, of its own time; 0: not known

  friend bool operator==(const RankCoverage&, const RankCoverage&) = default;
};

// How fine the diagnosis is: what would have been named by now with 99 % had it been there for the last `steps` steps.
struct Resolution {
  // The smallest lasting slowdown of one rank: of own time as a share of its peers' own time, of loading as a share of
  // the step, of transfers as a share of what they usually take. Of a typical rank (channel), and of the worst one.
  double ratio = 0;
  int steps = 0;
  int worst_rank = -1;
  double worst_ratio = 0;

  friend bool operator==(const Resolution&, const Resolution&) = default;
};

struct Report {
  int ranks = 0;                            // heard of, without those of former lives of the job
  int64_t first_step = -1, last_step = -1;  // judged; -1: none yet
  JobState state = JobState::kUnknown;
  std::vector<Verdict> verdicts;  // open ones first, each part by cost
  std::vector<Note> notes;
  std::vector<RankCoverage> coverage;  // by rank, of those that took part in the last steps
  double step_ms = 0;                  // median of the last steps
  double idle_s = 0;                   // since the last step was judged, of a job that goes on
  // Without a value: not known, because of too few steps or marks that do not suffice.
  std::optional<Resolution> own_time, dataloader, transfer;
  std::vector<std::string> nearest;  // RankTrace::text of the three ranks that are nearest to a verdict and have none
};

}  // namespace taskd::diagnosis
