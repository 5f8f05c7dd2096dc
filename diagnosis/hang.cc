#include "diagnosis/hang.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ranges_text.h"

namespace taskd::diagnosis {
namespace {

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanges(ranks));
}

// How far a member of a group has come.
struct Arrival {
  uint64_t number = 0;  // of the newest collective that it has entered
  int rank = 0;
  bool is_known = true;  // false: it may have entered more
  bool waits = false;    // in that collective

  bool IsThrough(uint64_t collective) const {
    return is_known && (number > collective || (number == collective && !waits));
  }
};

// Whether no member can be through with such a collective before all have brought their parts.
bool NeedsAll(const std::string& name) {
  const auto has = [&name](const char* word) { return name.find(word) != std::string::npos; };
  const bool reduces_to_all = has("all_reduce") || has("allreduce") || has("AllReduce");
  const bool gathers_to_all = has("all_gather") || has("allgather") || has("AllGather");
  const bool scatters = has("reduce_scatter") || has("ReduceScatter") || has("all_to_all") || has("alltoall");
  return reduces_to_all || gathers_to_all || scatters || has("barrier");
}

class HangFinder {
 public:
  explicit HangFinder(const HangFacts& facts) : facts_(facts) {}

  std::optional<Hang> Find() {
    for (const auto& [rank, known] : facts_.ranks) {
      for (const HangOp& op : known.ops) {
        if (op.peer < 0 && op.state == OpState::kStarted) begun_.emplace(op.group, op.number);
      }
    }
    for (const auto& [rank, known] : facts_.ranks) {
      if (known.is_gone) continue;
      std::vector<const HangOp*> ops = WaitingIn(known);
      if (HasBegunNone(ops)) {
        idle_.insert(rank);
      } else if (!ops.empty()) {
        waits_.emplace(rank, std::move(ops));
      }
    }
    if (waits_.empty()) return std::nullopt;
    GatherArrivals();
    std::optional<Hang> hang = FindMismatch();
    if (!hang) hang = FindMissing();
    if (!hang) hang = FindCircle();
    if (!hang) hang = Nobody(Earliest());
    Finish(*hang);
    return hang;
  }

 private:
  using Collective = std::pair<uint32_t, uint64_t>;  // group and number

  const std::string& Name(const HangOp& op) const { return facts_.calls[op.call].name; }

  // What runs on the device. Recorders that do not time operations call all of them scheduled: then the first ones.
  static std::vector<const HangOp*> WaitingIn(const HangRank& rank) {
    std::vector<const HangOp*> started, first;
    std::set<uint32_t> groups;
    for (const HangOp& op : rank.ops) {
      if (op.state == OpState::kCompleted) continue;
      // One behind another in a group waits for that one.
      if (op.state == OpState::kStarted && (op.peer >= 0 || groups.insert(op.group).second)) started.push_back(&op);
      if (first.empty() || first[0]->order == op.order) first.push_back(&op);
    }
    return started.empty() ? first : started;
  }

  // The first operations of a rank that are not over, where other members' devices have begun all of them and its own
  // device none: that does not wait for the others.
  bool HasBegunNone(const std::vector<const HangOp*>& first) const {
    return !first.empty() && std::all_of(first.begin(), first.end(), [&](const HangOp* op) {
      return op->peer < 0 && op->state == OpState::kScheduled && begun_.contains({op->group, op->number});
    });
  }

  // By group, and in it by what they have entered.
  void GatherArrivals() {
    std::vector<std::map<int, uint64_t>> entered(facts_.groups.size());
    for (const auto& [rank, known] : facts_.ranks) AddEntered(rank, known, idle_.contains(rank), entered);
    arrivals_.resize(facts_.groups.size());
    for (size_t group = 0; group < arrivals_.size(); ++group) {
      for (int member : facts_.groups[group].members) {
        const auto known = facts_.ranks.find(member);
        const auto newest = entered[group].find(member);
        Arrival arrival{.rank = member};
        if (newest != entered[group].end()) arrival.number = newest->second;
        arrival.waits = IsIn(member, {static_cast<uint32_t>(group), arrival.number});
        arrival.is_known = known != facts_.ranks.end() && !known->second.is_partial &&
                           (newest != entered[group].end() || !known->second.is_cut);
        arrivals_[group].push_back(arrival);
      }
      std::stable_sort(arrivals_[group].begin(), arrivals_[group].end(),
                       [](const Arrival& a, const Arrival& b) { return a.number < b.number; });
    }
  }

  static void AddEntered(int rank, const HangRank& known, bool is_idle, std::vector<std::map<int, uint64_t>>& entered) {
    const HangOp* waits = nullptr;
    std::map<uint32_t, uint64_t> open;  // by group: its first collective that is not over
    const auto add = [&](uint32_t group, uint64_t number) {
      uint64_t& newest = entered[group][rank];
      newest = std::max(newest, number);
    };
    for (const HangOp& op : known.ops) {
      // What is only scheduled behind another has not come to where the others wait.
      const bool is_behind =
          op.state == OpState::kScheduled && (is_idle || (waits != nullptr && op.order != waits->order));
      if (op.peer < 0 && !is_behind) add(op.group, op.number);
      if (op.state == OpState::kCompleted) continue;
      if (waits == nullptr) waits = &op;
      if (op.peer < 0) open.emplace(op.group, op.number);
    }
    // Collectives of a group end in their order.
    for (const auto& [group, number] : open) {
      if (number > 0) add(group, number - 1);
    }
    for (const auto& [group, number] : known.called) add(group, number);
  }

  bool IsIn(int rank, const Collective& collective) const {
    const auto waits = waits_.find(rank);
    return waits != waits_.end() && std::any_of(waits->second.begin(), waits->second.end(), [&](const HangOp* op) {
             return op->peer < 0 && Collective(op->group, op->number) == collective;
           });
  }

  // How many of the group have not entered it: so many of arrivals_, from the first on.
  size_t Behind(uint32_t group, uint64_t number) const {
    const std::vector<Arrival>& arrivals = arrivals_[group];
    return static_cast<size_t>(
        std::partition_point(arrivals.begin(), arrivals.end(), [&](const Arrival& a) { return a.number < number; }) -
        arrivals.begin());
  }

  // The peer has come to the other end, or goes to it. A peer that nobody knows anything of has not.
  bool IsPeerThere(int rank, const HangOp& op) const {
    if (op.peer == HangOp::kAnyPeer) return true;
    const auto peer = facts_.ranks.find(op.peer);
    if (peer == facts_.ranks.end()) return false;
    const std::vector<HangOp>& ops = peer->second.ops;
    return std::any_of(ops.begin(), ops.end(), [&](const HangOp& other) {
      return (other.peer == rank || other.peer == HangOp::kAnyPeer) && other.sends != op.sends &&
             other.state != OpState::kCompleted;
    });
  }

  // Somebody for whom the rank waits; -1: in this operation for nobody.
  int WaitsFor(int rank, const HangOp& op) const {
    if (op.peer >= 0) return IsPeerThere(rank, op) ? -1 : op.peer;
    return Behind(op.group, op.number) == 0 ? -1 : arrivals_[op.group][0].rank;
  }
  int WaitsFor(int rank) const {
    const auto waits = waits_.find(rank);
    if (waits == waits_.end()) return -1;
    for (const HangOp* op : waits->second) {
      if (const int other = WaitsFor(rank, *op); other >= 0) return other;
    }
    return -1;
  }

  const HangOp* Earliest() const {
    const HangOp* first = nullptr;
    for (const auto& [rank, ops] : waits_) {
      for (const HangOp* op : ops) {
        if (first == nullptr || op->created_ns < first->created_ns) first = op;
      }
    }
    return first;
  }

  // The ranks in one collective that do not do the same.
  std::optional<Hang> FindMismatch() {
    std::map<Collective, std::vector<std::pair<int, const HangOp*>>> collectives;
    for (const auto& [rank, ops] : waits_) {
      for (const HangOp* op : ops) {
        if (op->peer < 0) collectives[{op->group, op->number}];
      }
    }
    for (const auto& [rank, known] : facts_.ranks) {
      for (const HangOp& op : known.ops) {
        if (op.peer >= 0) continue;
        const auto collective = collectives.find({op.group, op.number});
        if (collective != collectives.end()) collective->second.emplace_back(rank, &op);
      }
    }
    std::optional<Hang> first;
    for (const auto& [collective, ops] : collectives) {
      std::optional<Hang> hang = Differ(ops, "order", &HangCall::name, collective);
      // Somebody who has not come is the simpler reason.
      if (!hang && Behind(collective.first, collective.second) == 0) {
        hang = Differ(ops, "type", &HangCall::type, collective);
        if (!hang) hang = Differ(ops, "size", &HangCall::amount, collective);
      }
      if (hang && (!first || hang->since_ns < first->since_ns)) first = std::move(hang);
    }
    return first;
  }

  std::optional<Hang> Differ(const std::vector<std::pair<int, const HangOp*>>& ops, const char* kind,
                             std::string HangCall::*what, const Collective& collective) const {
    std::map<std::string, std::vector<std::pair<int, const HangOp*>>> ways;
    for (const auto& op : ops) ways[facts_.calls[op.second->call].*what].push_back(op);
    if (ways.size() < 2 || ways.begin()->first.empty()) return std::nullopt;
    const auto most = std::max_element(ways.begin(), ways.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const bool is_clear = std::count_if(ways.begin(), ways.end(),
                                        [&](const auto& way) { return way.second.size() == most->second.size(); }) == 1;
    const auto shown = [&](const HangOp& op) {
      const HangCall& call = facts_.calls[op.call];
      return what == &HangCall::amount ? call.sizes : call.*what;
    };
    Hang hang;
    hang.kind = kind;
    hang.group = facts_.groups[collective.first].name;
    hang.operation = Name(*most->second[0].second);
    hang.since_ns = UINT64_MAX;
    std::string others;
    size_t left_out = 0;
    const HangOp* origin = nullptr;
    for (const auto& [way, same] : ways) {
      std::vector<int> ranks;
      for (const auto& [rank, op] : same) {
        ranks.push_back(rank);
        hang.since_ns = std::min(hang.since_ns, op->created_ns);
      }
      if (is_clear && way == most->first) continue;
      if (is_clear) {
        if (origin == nullptr || ranks[0] < hang.origins[0]) origin = same[0].second;
        hang.origins.insert(hang.origins.end(), ranks.begin(), ranks.end());
        std::sort(hang.origins.begin(), hang.origins.end());
      }
      if (others.size() > kMaxText) {
        ++left_out;
      } else {
        absl::StrAppend(&others, others.empty() ? "" : ", ", Ranks(ranks), " ", shown(*same[0].second));
      }
    }
    if (left_out > 0) absl::StrAppend(&others, " and ", left_out, " more");
    if (origin != nullptr) hang.frames = facts_.calls[origin->call].frames;
    hang.text = absl::StrCat("in collective ", collective.second, " of ", hang.group, " the ranks differ in ",
                             what == &HangCall::name ? "operation" : kind, ": ", others,
                             is_clear ? absl::StrCat(", the others ", shown(*most->second[0].second))
                                      : std::string(", and none of these are most"));
    return hang;
  }

  // Whether each operation that the rank waits in goes on without it: other members are through with it, which they
  // cannot be before the rank's part has come, or all other members are.
  bool IsLeftBehind(int rank) const {
    return std::all_of(waits_.at(rank).begin(), waits_.at(rank).end(), [&](const HangOp* op) {
      if (op->peer >= 0) return false;
      const size_t through = Through({op->group, op->number});
      return through > 0 && (through + 1 == arrivals_[op->group].size() || NeedsAll(Name(*op)));
    });
  }

  // How many members are through with it.
  size_t Through(const Collective& collective) const {
    const auto [known, is_new] = through_.try_emplace(collective, 0);
    if (is_new) {
      const std::vector<Arrival>& arrivals = arrivals_[collective.first];
      known->second = static_cast<size_t>(std::count_if(arrivals.begin(), arrivals.end(), [&](const Arrival& arrival) {
        return arrival.IsThrough(collective.second);
      }));
    }
    return known->second;
  }

  // Those who are waited for, and wait in nothing.
  std::optional<Hang> FindMissing() const {
    std::map<uint32_t, uint64_t> newest;  // that somebody of the group waits in
    std::set<int> ends, unknown, stuck;
    for (const auto& [rank, ops] : waits_) {
      for (const HangOp* op : ops) {
        if (op->peer < 0) {
          uint64_t& number = newest[op->group];
          number = std::max(number, op->number);
        } else if (!IsPeerThere(rank, *op) && WaitsFor(op->peer) < 0) {
          const auto peer = facts_.ranks.find(op->peer);
          const bool is_known = peer != facts_.ranks.end() && !peer->second.is_partial;
          (!is_known ? unknown : IsStuck(op->peer) ? stuck : ends).insert(op->peer);
        }
      }
    }
    for (const auto& [group, number] : newest) {
      const size_t behind = Behind(group, number);
      for (size_t i = 0; i < behind; ++i) {
        const Arrival& arrival = arrivals_[group][i];
        if (WaitsFor(arrival.rank) >= 0) continue;
        (!arrival.is_known ? unknown : IsStuck(arrival.rank) ? stuck : ends).insert(arrival.rank);
      }
    }
    if (!ends.empty()) return Missing(ends, unknown);
    if (!unknown.empty()) return CannotSay(unknown);
    if (!stuck.empty()) return Nobody(waits_.at(*stuck.begin())[0]);
    return std::nullopt;
  }

  bool IsStuck(int rank) const { return waits_.contains(rank) && !IsLeftBehind(rank); }

  // What somebody has waited in longest for one of these.
  const HangOp* FirstThatWaitsFor(const std::set<int>& ranks) const {
    std::map<uint32_t, uint64_t> lowest;  // by group: what the first of them has entered
    for (uint32_t group = 0; group < arrivals_.size(); ++group) {
      for (const Arrival& arrival : arrivals_[group]) {
        if (ranks.contains(arrival.rank)) {
          lowest.emplace(group, arrival.number);
          break;
        }
      }
    }
    const HangOp* first = nullptr;
    for (const auto& [rank, ops] : waits_) {
      for (const HangOp* op : ops) {
        const auto low = lowest.find(op->group);
        const bool waits = op->peer >= 0 ? ranks.contains(op->peer) && !IsPeerThere(rank, *op)
                                         : low != lowest.end() && low->second < op->number;
        if (waits && (first == nullptr || op->created_ns < first->created_ns)) first = op;
      }
    }
    return first;
  }

  Hang Missing(const std::set<int>& ends, const std::set<int>& unknown) const {
    const HangOp& first = *FirstThatWaitsFor(ends);
    Hang hang;
    Describe(first, hang);
    hang.kind = "missing";
    hang.origins.assign(ends.begin(), ends.end());
    const size_t waiting = waits_.size();
    hang.text = absl::StrCat(
        Ranks(hang.origins), first.peer >= 0 ? " never came to the other end of " : " never entered ", What(first),
        "; ", waiting, waiting == 1 ? " rank waits" : " ranks wait", " for ", hang.origins.size() == 1 ? "it" : "them");
    std::vector<int> gone, silent;
    for (int rank : ends) {
      if (facts_.ranks.at(rank).is_gone) gone.push_back(rank);
    }
    for (int rank : unknown) {
      if (!facts_.ranks.contains(rank)) silent.push_back(rank);
    }
    if (!gone.empty())
      absl::StrAppend(&hang.text, "; ", Ranks(gone), gone.size() == 1 ? " does" : " do", " not answer");
    if (!silent.empty()) absl::StrAppend(&hang.text, "; of ", Ranks(silent), " nothing is known");
    const std::vector<HangOp>& ops = facts_.ranks.at(hang.origins[0]).ops;
    if (!ops.empty()) hang.frames = facts_.calls[ops.back().call].frames;
    return hang;
  }

  Hang CannotSay(const std::set<int>& unknown) const {
    const HangOp& first = *FirstThatWaitsFor(unknown);
    Hang hang;
    Describe(first, hang);
    hang.kind = "unknown";
    std::vector<int> without, cut;
    for (int rank : unknown) (facts_.ranks.contains(rank) ? cut : without).push_back(rank);
    hang.text = "cannot say who holds the job up: ";
    if (!without.empty()) absl::StrAppend(&hang.text, "nothing is known of ", Ranks(without));
    if (!cut.empty()) {
      absl::StrAppend(&hang.text, without.empty() ? "" : ", and ", "what is known of ", Ranks(cut),
                      " does not reach to the group's last operation");
    }
    absl::StrAppend(&hang.text, "; ", waits_.size(),
                    waits_.size() == 1 ? " rank waits, first in " : " ranks wait, first in ", What(first));
    return hang;
  }

  // Everybody waits for somebody: the ranks do the same in different order, or wait for each other's messages.
  std::optional<Hang> FindCircle() const {
    int rank = -1;
    for (const auto& [waiting, ops] : waits_) {
      if (WaitsFor(waiting) < 0) continue;
      rank = waiting;
      break;
    }
    if (rank < 0) return std::nullopt;
    // From one to the next until one comes again.
    using Place = std::tuple<uint32_t, uint64_t, std::string>;
    const auto place_of = [&](int waiting) {
      for (const HangOp* op : waits_.at(waiting)) {
        if (WaitsFor(waiting, *op) >= 0) return op;
      }
      return waits_.at(waiting)[0];
    };
    const auto key_of = [&](const HangOp& op) { return Place(op.group, op.peer < 0 ? op.number : 0, Name(op)); };
    std::vector<int> way;
    std::set<int> seen;
    for (; seen.insert(rank).second; rank = WaitsFor(rank)) way.push_back(rank);
    std::map<Place, std::vector<int>> places;
    for (auto in_circle = std::find(way.begin(), way.end(), rank); in_circle != way.end(); ++in_circle) {
      places[key_of(*place_of(*in_circle))];
    }
    for (const auto& [waiting, ops] : waits_) {
      const auto place = places.find(key_of(*place_of(waiting)));
      if (place != places.end()) place->second.push_back(waiting);
    }
    const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
    const auto fewest = std::min_element(places.begin(), places.end(), fewer);
    const auto most = std::max_element(places.begin(), places.end(), fewer);
    const HangOp& theirs = *place_of(most->second[0]);
    Hang hang;
    hang.kind = "order";
    Describe(theirs, hang);
    if (places.size() == 2 && fewest->second.size() < most->second.size()) {
      const HangOp& other = *place_of(fewest->second[0]);
      hang.origins = fewest->second;
      hang.frames = facts_.calls[other.call].frames;
      hang.text = absl::StrCat(Ranks(hang.origins), hang.origins.size() == 1 ? " is in " : " are in ", What(other),
                               " while ", Ranks(most->second), most->second.size() == 1 ? " is in " : " are in ",
                               What(theirs), ": each side waits for the other");
    } else {
      hang.text = absl::StrCat("ranks wait for each other in a circle, ", Ranks(most->second), " in ", What(theirs),
                               "; cannot say who was wrong");
    }
    return hang;
  }

  // All have come, and still it does not end.
  Hang Nobody(const HangOp* first) const {
    Hang hang;
    hang.kind = "unknown";
    Describe(*first, hang);
    hang.text = absl::StrCat("cannot say who holds the job up: all of which anything is known have come to ",
                             What(*first), ", and it does not end");
    return hang;
  }

  std::string What(const HangOp& op) const {
    std::string text = Name(op);
    if (op.peer < 0) {
      absl::StrAppend(&text, " ", op.number);
    } else if (op.peer != HangOp::kAnyPeer) {
      absl::StrAppend(&text, op.sends ? " to rank " : " from rank ", op.peer);
    }
    return absl::StrCat(text, " of ", facts_.groups[op.group].name);
  }

  void Describe(const HangOp& op, Hang& hang) const {
    hang.group = facts_.groups[op.group].name;
    hang.operation = Name(op);
  }

  void Finish(Hang& hang) const {
    hang.since_ns = 0;
    for (const auto& [rank, ops] : waits_) {
      if (!std::binary_search(hang.origins.begin(), hang.origins.end(), rank)) hang.waiting.push_back(rank);
      for (const HangOp* op : ops) {
        if (op->created_ns != 0 && (hang.since_ns == 0 || op->created_ns < hang.since_ns)) {
          hang.since_ns = op->created_ns;
        }
      }
    }
  }

  static constexpr size_t kMaxText = 512;  // of how the ranks differ

  const HangFacts& facts_;
  std::set<Collective> begun_;  // on some member's device
  std::set<int> idle_;          // HasBegunNone
  std::map<int, std::vector<const HangOp*>> waits_;
  std::vector<std::vector<Arrival>> arrivals_;
  mutable std::map<Collective, size_t> through_;
};

}  // namespace

std::optional<Hang> FindHang(const HangFacts& facts) { return HangFinder(facts).Find(); }

}  // namespace taskd::diagnosis
