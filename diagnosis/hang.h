// Who holds up a job that hangs, from what each rank's communication library knew of its operations. Pure computation.
//
// A rank waits for those members of a group that have not entered the operation in which it stands. Followed from rank
// to rank and from group to group that leads to ranks that wait for nobody: they are the origins, all of them. Where it
// leads round in a circle, the fewer ones are the origins: they came to other operations than the rest. Whoever waits in an
// operation that all have entered is no origin, unless its device has not begun what other members' devices have begun, or
// other members are through with the operation. Of a rank of which nothing is known nothing is said.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace taskd::diagnosis {

enum class OpState : uint8_t { kScheduled, kStarted, kCompleted };

// What a rank called.
struct HangCall {
  std::string name;    // "all_reduce"
  std::string type;    // of the elements; empty: unknown, or may differ between ranks
  std::string amount;  // of data, as a text that is compared; empty: as type
  std::string sizes;   // the same, to be read
  std::string frames;  // the innermost first, a line each

  friend bool operator<(const HangCall& a, const HangCall& b) {
    return std::tie(a.name, a.type, a.amount, a.sizes, a.frames) <
           std::tie(b.name, b.type, b.amount, b.sizes, b.frames);
  }
};

// One operation of one rank.
struct HangOp {
  static constexpr int kAnyPeer = INT32_MAX;

  uint32_t group = 0;       // index in HangFacts::groups
  uint32_t call = 0;        // index in HangFacts::calls
  uint64_t number = 0;      // of the group's collectives
  uint64_t order = 0;       // of all operations of the rank; those that are issued as one have the same
  uint64_t created_ns = 0;  // Unix; 0: unknown
  int peer = -1;            // global rank of the other end; kAnyPeer: any, or unknown; -1: a collective
  bool sends = false;       // to the peer, else receives from it
  OpState state = OpState::kScheduled;
};

struct HangGroup {
  std::string name;
  std::vector<int> members;  // global ranks, in the group's order
};

struct HangRank {
  std::vector<HangOp> ops;  // by order; at least the newest of each group, and those that are not completed
  // By group of which `ops` have no collective: the number of the newest one that it has called. They are all completed.
  std::map<uint32_t, uint64_t> called;
  bool is_cut = false;      // older operations are gone: of a group without any, nobody can say
  bool is_partial = false;  // newer operations may be missing: it may have entered more than is here
  bool is_gone = false;     // it is known to answer no more, and entered nothing of what others wait in
};

struct HangFacts {
  std::vector<HangGroup> groups;
  std::vector<HangCall> calls;
  std::map<int, HangRank> ranks;  // those of which anything is known
};

struct Hang {
  std::vector<int> origins;  // ascending; empty: the facts cannot tell
  std::string kind;          // "missing", "order", "size", "type", "unknown"
  std::string group;
  std::string operation;
  uint64_t since_ns = 0;     // Unix; 0: unknown
  std::vector<int> waiting;  // ascending
  std::string frames;        // of the first origin, as in HangCall
  std::string text;          // one sentence
};

// None: no operation of these waits.
std::optional<Hang> FindHang(const HangFacts& facts);

}  // namespace taskd::diagnosis
