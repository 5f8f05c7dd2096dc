#include "readers/nccl_ras.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/json_stream.h"

namespace taskd::readers {
namespace {

using diagnosis::Hang;
using diagnosis::HangCall;
using diagnosis::HangFacts;
using diagnosis::HangOp;
using diagnosis::HangRank;
using diagnosis::OpState;

constexpr size_t kMaxRanks = size_t{1} << 19;  // sum over all communicators of an answer
constexpr size_t kMaxCommunicators = size_t{1} << 16;
constexpr size_t kMaxText = 128;
constexpr size_t kNamedProcesses = 4;
constexpr int kInProgress = 7;  // value in ncclResult_t; not an error

std::string Safe(std::string_view text) {
  return CutUtf8(ValidUtf8(std::string(text.substr(0, 4 * kMaxText))), kMaxText);
}

// Example: {"communicators": [{"ranks": [{"status": {}, "collective_counts": {}}], "missing_ranks": […]}]}
class Handler : public JsonHandler<Handler> {
 public:
  Handler(JsonStream& stream, RasState& state) : JsonHandler(stream), state_(state) {}

  bool is_complete() const { return is_complete_; }
  bool is_too_large() const { return is_too_large_; }

  bool Name(std::string_view name) {
    if (depth() < keys_.size()) keys_[depth()] = Safe(name);
    return true;
  }
  bool Text(std::string_view text) {
    if (depth() == kRoot && keys_[kRoot] == "timestamp") {
      state_.since = state_.until = Safe(text);
    } else if (InCommunicator() && depth() == kCommunicator && (ThisKey() == "hash" || ThisKey() == "secondary_hash")) {
      std::string& id = communicator_.id;
      absl::StrAppend(&id, id.empty() ? "" : ":", Safe(text));
    } else if (InRank() && depth() == kRank && ThisKey() == "host") {
      host_ = Safe(text);
    }
    return true;
  }
  bool Number(std::string_view text) {
    uint64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return true;  // negative
    if (InRank() && depth() == kRank + 1 && keys_[kRank] == "collective_counts") {
      if (const size_t op = OpOf(ThisKey()); op < RasRank::kOps) rank_.counts[op] = number;
      return true;
    }
    const int small = static_cast<int>(std::min<uint64_t>(number, INT32_MAX));
    if (InCommunicator() && depth() == kCommunicator && ThisKey() == "size") communicator_.size = small;
    if (!InRank()) return true;
    if (depth() == kRank && ThisKey() == "rank") rank_.rank = small;
    if (depth() == kRank && ThisKey() == "pid") pid_ = small;
    if (depth() == kRank && ThisKey() == "cuda_dev") gpu_ = small;
    if (depth() == kRank + 1 && ThisKey() == "async_error") rank_.error = small;
    return true;
  }
  bool Bool(bool value) {
    if (value && InRank() && depth() == kRank + 1 && (ThisKey() == "unresponsive" || ThisKey() == "considered_dead")) {
      rank_.is_gone = true;
    }
    return JsonHandler::Bool(value);
  }
  bool Begin(bool is_array) {
    if (is_array) return true;
    if (InCommunicator() && depth() == kCommunicator) communicator_ = {};
    if (InRank() && depth() == kRank) {
      rank_ = {.rank = -1, .is_missing = keys_[kCommunicator] == "missing_ranks"};
      host_.clear();
      pid_ = gpu_ = -1;
    }
    return true;
  }
  bool End(bool is_array) {
    if (depth() == 0) is_complete_ = !is_array;
    if (is_array) return true;
    if (InRank() && depth() == kRank - 1) AddRank();
    if (InCommunicator() && depth() == kCommunicator - 1) AddCommunicator();
    return !is_too_large_;
  }

 private:
  // Depths of the values.
  static constexpr size_t kRoot = 1, kCommunicator = 3, kRank = 5;

  const std::string& ThisKey() const { return keys_[depth()]; }
  bool InCommunicator() const { return keys_[kRoot] == "communicators"; }
  bool InRank() const {
    return InCommunicator() && (keys_[kCommunicator] == "ranks" || keys_[kCommunicator] == "missing_ranks") &&
           depth() < keys_.size();
  }

  size_t OpOf(const std::string& name) {
    const auto found = std::find(state_.ops.begin(), state_.ops.end(), name);
    if (found == state_.ops.end() && state_.ops.size() == RasRank::kOps) return RasRank::kOps;
    if (found != state_.ops.end()) return static_cast<size_t>(found - state_.ops.begin());
    state_.ops.push_back(name);
    return state_.ops.size() - 1;
  }

  void AddRank() {
    if (rank_.rank < 0 || rank_.rank >= diagnosis::kMaxRanks) return;
    if (++ranks_ > kMaxRanks) {
      is_too_large_ = true;
      return;
    }
    if (pid_ >= 0) {
      std::string process = absl::StrCat("process ", pid_, " on ", host_, ", GPU ", gpu_);
      const auto [found, is_new] = processes_.try_emplace(process, static_cast<int>(state_.processes.size()));
      if (is_new) {
        state_.processes.push_back(std::move(process));
        state_.pids.push_back(pid_);
      }
      rank_.process = found->second;
    }
    communicator_.ranks.push_back(rank_);
  }

  void AddCommunicator() {
    std::vector<RasRank>& ranks = communicator_.ranks;
    const auto key = [](const RasRank& rank) { return std::pair(rank.rank, rank.is_missing); };
    std::sort(ranks.begin(), ranks.end(), [&](const RasRank& a, const RasRank& b) { return key(a) < key(b); });
    ranks.erase(
        std::unique(ranks.begin(), ranks.end(), [](const RasRank& a, const RasRank& b) { return a.rank == b.rank; }),
        ranks.end());
    is_too_large_ |= state_.communicators.size() == kMaxCommunicators;
    if (!is_too_large_) state_.communicators.push_back(std::move(communicator_));
    communicator_ = {};
  }

  RasState& state_;
  std::array<std::string, kRank + 2> keys_;  // by depth
  RasCommunicator communicator_;
  RasRank rank_;
  std::string host_;
  int pid_ = -1, gpu_ = -1;
  std::map<std::string, int> processes_;
  size_t ranks_ = 0;
  bool is_complete_ = false;
  bool is_too_large_ = false;
};

bool SaysTheSame(const RasState& a, const RasState& b) {
  const auto same_rank = [](const RasRank& x, const RasRank& y) {
    return x.rank == y.rank && x.is_missing == y.is_missing && x.is_gone == y.is_gone && x.counts == y.counts;
  };
  const auto same = [&](const RasCommunicator& x, const RasCommunicator& y) {
    return x.id == y.id && std::equal(x.ranks.begin(), x.ranks.end(), y.ranks.begin(), y.ranks.end(), same_rank);
  };
  return a.ops == b.ops && std::equal(a.communicators.begin(), a.communicators.end(), b.communicators.begin(),
                                      b.communicators.end(), same);
}

class Judge {
 public:
  explicit Judge(const RasState& state) : state_(state) {}

  RasFinding Find() {
    MapRanks();
    for (const RasCommunicator& communicator : state_.communicators) {
      if (communicator.size > 1) AddFacts(communicator);
    }
    RasFinding finding;
    finding.ranks = size_;
    for (int rank : alive_but_missing_) {
      const auto known = facts_.ranks.find(rank);
      if (known != facts_.ranks.end()) known->second.is_cut = true;
    }
    finding.hang = diagnosis::FindHang(facts_);
    finding.is_dead = finding.hang && !finding.hang->origins.empty() &&
                      std::all_of(finding.hang->origins.begin(), finding.hang->origins.end(),
                                  [this](int rank) { return facts_.ranks.at(rank).is_gone; });
    if (finding.hang && !finding.is_dead) DoubtMessages(*finding.hang);
    if (finding.hang && !is_mapped_) NameProcesses(*finding.hang);
    std::set<int> failed;
    for (const RasCommunicator& communicator : state_.communicators) {
      for (const RasRank& rank : communicator.ranks) {
        if (rank.error != 0 && rank.error != kInProgress) failed.insert(NumberOf(communicator, rank));
      }
    }
    failed.erase(-1);
    if (!failed.empty() && is_mapped_) {
      finding.notes.push_back(absl::StrCat("NCCL has an asynchronous error on ",
                                           failed.size() == 1 ? "rank " : "ranks ",
                                           FormatRanges(std::vector<int>(failed.begin(), failed.end()))));
    }
    return finding;
  }

 private:
  // Global ranks are the ranks of a communicator that contains all processes.
  void MapRanks() {
    global_.assign(state_.processes.size(), -1);
    for (const RasCommunicator& communicator : state_.communicators) {
      if (!HasAll(communicator)) continue;
      has_all_.insert(&communicator);
      is_mapped_ = true;
      size_ = communicator.size;
      for (const RasRank& rank : communicator.ranks) {
        if (rank.process < 0) continue;
        int& number = global_[static_cast<size_t>(rank.process)];
        if (number >= 0 && number != rank.rank) is_mapped_ = false;
        number = rank.rank;
      }
      if (!is_mapped_) break;  // several such communicators have different orders
    }
    if (is_mapped_) return;
    has_all_.clear();
    for (size_t i = 0; i < global_.size(); ++i) global_[i] = static_cast<int>(i);
    size_ = static_cast<int>(global_.size());
  }

  bool HasAll(const RasCommunicator& communicator) const {
    std::set<int> processes;
    size_t unknown = 0;
    for (const RasRank& rank : communicator.ranks) {
      if (rank.process >= 0) {
        processes.insert(rank.process);
      } else {
        ++unknown;
      }
    }
    return processes.size() == state_.processes.size() &&
           processes.size() + unknown == static_cast<size_t>(communicator.size);
  }

  int NumberOf(const RasCommunicator& communicator, const RasRank& rank) const {
    if (rank.process >= 0) return global_[static_cast<size_t>(rank.process)];
    return has_all_.contains(&communicator) ? rank.rank : -1;
  }

  // `ops`: the operation is one of these kinds.
  uint32_t CallOf(const std::vector<size_t>& ops) {
    std::string name;
    for (size_t op : ops) absl::StrAppend(&name, name.empty() ? "" : " or ", state_.ops[op]);
    if (name.empty()) name = "collective";
    for (size_t i = 0; i < facts_.calls.size(); ++i) {
      if (facts_.calls[i].name == name) return static_cast<uint32_t>(i);
    }
    HangCall call;
    call.name = name;
    facts_.calls.push_back(std::move(call));
    return static_cast<uint32_t>(facts_.calls.size() - 1);
  }

  // The kinds of operations that `rank` has launched more often than `other`.
  static std::vector<size_t> MoreOf(const RasRank& rank, const RasRank& other) {
    std::vector<size_t> ops;
    for (size_t op = 0; op < RasRank::kOps; ++op) {
      if (rank.counts[op] > other.counts[op]) ops.push_back(op);
    }
    return ops;
  }

  // Whether one rank has more of one kind and less of another: the ranks launched different operations, and none is
  // just ahead.
  static bool LaunchedOthers(const std::vector<std::pair<int, const RasRank*>>& members) {
    std::vector<const RasRank*> ranks;
    for (const auto& [number, rank] : members) {
      if (!rank->is_missing) ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end(), [](const RasRank* a, const RasRank* b) { return a->total() < b->total(); });
    for (size_t i = 1; i < ranks.size(); ++i) {
      if (!MoreOf(*ranks[i - 1], *ranks[i]).empty()) return true;
    }
    return false;
  }

  void AddFacts(const RasCommunicator& communicator) {
    const auto group = static_cast<uint32_t>(facts_.groups.size());
    facts_.groups.push_back({.name = absl::StrCat("communicator ", communicator.id), .members = {}});
    const RasRank* least = nullptr;
    bool anybody_gone = false;
    std::vector<std::pair<int, const RasRank*>> members;
    for (const RasRank& rank : communicator.ranks) {
      const int number = NumberOf(communicator, rank);
      if (number < 0) continue;
      members.emplace_back(number, &rank);
      facts_.groups.back().members.push_back(number);
      anybody_gone |= rank.is_gone;
      if (rank.is_missing) continue;
      if (least == nullptr || rank.total() < least->total()) least = &rank;
    }
    if (least == nullptr) return;
    const uint64_t lowest = least->total();
    const auto is_used = [](const auto& member) { return member.second->total() > 0; };
    if (std::none_of(members.begin(), members.end(), is_used)) {
      for (const auto& [number, rank] : members) in_messages_.insert(number);
    }
    const RasRank* next = nullptr;  // the rank with the fewest launches beyond the lowest
    RasRank fewest = *least;        // minimum of each kind
    for (const auto& [number, rank] : members) {
      if (rank->is_missing) continue;
      if (rank->total() > lowest && (next == nullptr || rank->total() < next->total())) next = rank;
      for (size_t op = 0; op < RasRank::kOps; ++op) fewest.counts[op] = std::min(fewest.counts[op], rank->counts[op]);
    }
    const bool differ = LaunchedOthers(members);
    for (const auto& [number, rank] : members) {
      if (rank->is_missing && !rank->is_gone) {
        alive_but_missing_.insert(number);  // nothing is known of it in this communicator
        continue;
      }
      HangRank& known = facts_.ranks[number];
      if (rank->is_missing) {
        known.is_gone = true;
        continue;
      }
      HangOp op{.group = group, .order = group};
      std::vector<size_t> kinds;
      if (anybody_gone) {
        op.number = std::max<uint64_t>(1, lowest);
        op.state = OpState::kStarted;
      } else if (differ) {
        kinds = MoreOf(*rank, fewest);
        op.number = fewest.total() + (kinds.empty() ? 0 : 1);
        op.state = kinds.empty() ? OpState::kCompleted : OpState::kStarted;
      } else if (next != nullptr) {
        // A rank that is further ahead waits in the first operation that the last ranks have not launched, too.
        op.number = rank->total() > lowest ? lowest + 1 : lowest;
        op.state = rank->total() > lowest ? OpState::kStarted : OpState::kCompleted;
        kinds = MoreOf(*next, *least);
      } else {
        op.number = lowest;
        op.state = OpState::kCompleted;
      }
      op.call = CallOf(kinds);
      if (op.number > 0) known.ops.push_back(op);
    }
  }

  // A communicator without collectives serves messages, which are not counted. A missing rank may wait for a message.
  void DoubtMessages(Hang& hang) const {
    const bool may_wait =
        std::any_of(hang.origins.begin(), hang.origins.end(), [this](int rank) { return in_messages_.contains(rank); });
    if (!may_wait || hang.kind != "missing") return;
    absl::StrAppend(&hang.text, "; cannot say whether ", hang.origins.size() == 1 ? "it waits" : "they wait",
                    " for a message, of which nothing is counted");
    hang.kind = "unknown";
    hang.origins.clear();
  }

  // No communicator contains all processes, so their ranks are unknown.
  void NameProcesses(Hang& hang) const {
    std::string named;
    const size_t shown = std::min(hang.origins.size(), kNamedProcesses);
    for (size_t i = 0; i < shown; ++i) {
      absl::StrAppend(&named, i == 0 ? "" : "; ", state_.processes[static_cast<size_t>(hang.origins[i])]);
    }
    if (hang.origins.size() > shown) absl::StrAppend(&named, " and ", hang.origins.size() - shown, " more");
    hang.text = absl::StrCat("in ", hang.operation, " of ", hang.group, " ", hang.waiting.size(),
                             hang.waiting.size() == 1 ? " process waits" : " processes wait",
                             named.empty() ? std::string() : absl::StrCat(" for ", named),
                             "; no communicator has all processes, so their ranks are not known");
    hang.origins.clear();
    hang.waiting.clear();
  }

  const RasState& state_;
  std::vector<int> global_;  // rank of each process; its index if no communicator contains all
  bool is_mapped_ = false;
  std::set<const RasCommunicator*> has_all_;
  std::set<int> alive_but_missing_;
  std::set<int> in_messages_;  // ranks with a communicator that has launched no operation
  int size_ = 0;
  HangFacts facts_;
};

}  // namespace

uint64_t RasRank::total() const {
  uint64_t sum = 0;
  for (uint64_t count : counts) sum += count;
  return sum;
}

RasAnswers ReadRasAnswers(ByteSource& source) {
  RasAnswers answers;
  // NCCL 2.28.9 omits commas in its lists of missing ranks. Text between two answers is ignored.
  auto stream = std::make_unique<JsonStream>(source, /*may_lack_commas=*/true);
  while (answers.note.empty() && stream->SkipTo('{')) {
    RasState state;
    Handler handler(*stream, state);
    answers.note = ReadJson(source, *stream, handler);
    if (handler.is_too_large()) answers.note = "an answer has too many ranks";
    // An answer that was cut lacks ranks or communicators, so it does not show which ranks are missing.
    if (!handler.is_complete()) break;
    ++answers.records;
    AddRasState(std::move(state), answers.states);
  }
  return answers;
}

void AddRasState(RasState state, std::vector<RasState>& states) {
  const auto by_id = [](const RasCommunicator& a, const RasCommunicator& b) { return a.id < b.id; };
  std::stable_sort(state.communicators.begin(), state.communicators.end(), by_id);
  if (!states.empty() && SaysTheSame(states.back(), state)) {
    // An answer that was recorded twice counts once.
    if (state.since.empty() || state.since != states.back().until) states.back().answers += state.answers;
    states.back().until = state.until;
    return;
  }
  if (states.size() == 2) states.erase(states.begin());
  states.push_back(std::move(state));
}

RasFinding JudgeRas(const std::vector<RasState>& states) {
  RasFinding finding;
  if (states.empty()) return finding;
  const RasState& last = states.back();
  finding = Judge(last).Find();
  if (last.answers > 1) {
    const std::string still = absl::StrCat(last.answers, " answers", last.since.empty() ? "" : " from ", last.since,
                                           last.until.empty() ? "" : " to ", last.until, " say the same");
    if (finding.hang) {
      absl::StrAppend(&finding.hang->text, " (NCCL RAS: ", still, ")");
    } else {
      finding.notes.push_back(absl::StrCat("NCCL RAS: ", still,
                                           ", and all ranks have launched as much: whether they stand still in an "
                                           "operation these counts cannot say"));
    }
    return finding;
  }
  if (states.size() == 1 && finding.is_dead) return finding;
  if (states.size() > 1) {
    finding.notes.emplace_back("NCCL RAS: the ranks went on between the last two answers: they do not hang");
  } else {
    finding.notes.push_back(absl::StrCat(
        "NCCL RAS: one answer cannot say whether the job stands still: give a second one, taken a minute later",
        finding.hang ? absl::StrCat("; if it does: ", finding.hang->text) : std::string()));
  }
  finding.hang.reset();
  return finding;
}

}  // namespace taskd::readers
