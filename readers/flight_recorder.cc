#include "readers/flight_recorder.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/json_stream.h"
#include "readers/pickle.h"
#include "readers/rank_list.h"
#include "readers/value_tree.h"

namespace taskd::readers {
namespace {

constexpr size_t kMaxPickleBytes = size_t{64} << 20;
constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr size_t kMaxGroups = 1024;
constexpr size_t kMaxMembers = size_t{1} << 18;   // sum over all groups of a dump
constexpr size_t kMaxListText = size_t{1} << 20;  // length of "[0, 1, …]" with kMaxRanks ranks
constexpr size_t kOpsOfGroup = 4;                 // newest completed operations that are kept
constexpr size_t kMaxWaiting = 32;                // oldest open operations that are kept
constexpr size_t kMaxOps = 512;                   // per rank
constexpr size_t kMaxKeys = 64;                   // per entry
constexpr size_t kMaxTensors = 64;                // per entry
constexpr size_t kMaxDimensions = 16;             // per tensor
constexpr size_t kFrames = 12;
constexpr size_t kMaxText = 256;  // per name, sizes or frame
// Limit of keys and values that are read from entries: a pickle may repeat one entry a million times, in two bytes
// each. A buffer of 200,000 entries with 50 values each needs a third of it.
constexpr uint64_t kMaxVisits = uint64_t{1} << 25;

using diagnosis::HangCall;
using diagnosis::HangOp;
using diagnosis::OpState;
using Id = ValueTree::Id;
using Kind = ValueTree::Kind;

class TreeBuilder : public JsonHandler<TreeBuilder> {
 public:
  TreeBuilder(JsonStream& stream, ValueTree& tree) : JsonHandler(stream), tree_(tree) {}

  bool Name(std::string_view name) { return Put(tree_.AddText(name)); }
  bool Text(std::string_view text) { return Put(tree_.AddText(text)); }
  bool Number(std::string_view text) { return Put(tree_.AddNumber(text)); }
  bool Bool(bool value) {
    bool_ = value;
    return JsonHandler::Bool(value);
  }
  bool Other() {
    const std::optional<bool> value = std::exchange(bool_, std::nullopt);
    return Put(value ? tree_.Add(Kind::kBool, *value ? 1 : 0) : tree_.Add(Kind::kNone));
  }
  bool Begin(bool is_array) {
    const Id id = tree_.Add(is_array ? Kind::kList : Kind::kMap);
    if (open_.empty()) tree_.SetRoot(id);
    if (!Put(id)) return false;
    open_.push_back({id, items_.size()});
    return true;
  }
  bool End(bool) {
    const auto [id, begin] = open_.back();
    tree_.Append(id, std::span(items_).subspan(begin));
    items_.resize(begin);
    open_.pop_back();
    return true;
  }

  // Closes the containers that are open where the dump was cut; they keep the values read before.
  void Finish() {
    while (!open_.empty()) End(false);
  }

 private:
  bool Put(Id id) {
    if (id == ValueTree::Nothing()) return false;
    items_.push_back(id);
    return true;
  }

  ValueTree& tree_;
  std::vector<Id> items_;                    // items of open containers
  std::vector<std::pair<Id, size_t>> open_;  // with their begin in items_
  std::optional<bool> bool_;                 // a bool that Other() will deliver
};

std::string Safe(std::string_view text) {
  return CutUtf8(ValidUtf8(std::string(text.substr(0, 4 * kMaxText))), kMaxText);
}

// The tensors of a call: number of elements, and shapes.
struct Amount {
  uint64_t elements = 0;
  std::string shapes;  // "4x1024 + 8"
};

// Whether an operation's inputs and outputs have one size on all its ranks. In some operations each rank contributes or
// receives its own size.
struct Compared {
  bool input = false, output = false;
};

Compared ComparedOf(const std::string& any_case) {
  const std::string name = absl::AsciiStrToLower(any_case);
  const auto has = [&name](const char* word) { return name.find(word) != std::string::npos; };
  if (has("coalesced") || has("barrier") || has("all_to_all") || has("alltoall")) return {};
  const bool is_one_tensor = has("_base") || has("tensor") || has("single");
  if (has("all_gather") || has("allgather")) return {.input = is_one_tensor, .output = true};
  if (has("reduce_scatter")) return {.input = true, .output = is_one_tensor};
  if (has("scatter") || has("gather")) return {};
  if (has("all_reduce") || has("allreduce")) return {.input = true, .output = true};
  return {.input = has("reduce") || has("broadcast")};
}

class DumpReader {
 public:
  DumpReader(const ValueTree& tree, HangTables& tables, FlightDump& dump) : tree_(tree), tables_(tables), dump_(dump) {}

  void Read() {
    const Id root = tree_.root();
    if (const Id rank = tree_.Find(root, "rank"); rank != ValueTree::Nothing()) {
      dump_.rank = static_cast<int>(std::clamp<int64_t>(tree_.number(rank), -1, INT32_MAX));
    }
    const std::string_view version = tree_.text(tree_.Find(root, "version"));
    if (!version.empty() && !version.starts_with("2."))
      AddNote(absl::StrCat("version ", Safe(version), " is not known"));
    ReadGroups(tree_.Find(root, "pg_config"));
    int64_t first = INT64_MAX;
    for (Id entry : tree_.items(tree_.Find(root, "entries"))) {
      if (tree_.kind(entry) != Kind::kMap || tree_.items(entry).size() > 2 * kMaxKeys) continue;
      dump_.visits += 1 + tree_.items(entry).size();
      if (dump_.visits > kMaxVisits) {
        AddNote("the rest is left out: it has too many entries");
        dump_.known.is_partial = dump_.known.is_cut = true;
        break;
      }
      if (tree_.Find(entry, "state") == ValueTree::Nothing()) continue;  // the entry is cut
      const int64_t record = tree_.number(tree_.Find(entry, "record_id"));
      if (record >= 0) first = std::min(first, record);
      ReadEntry(entry, record >= 0 ? static_cast<uint64_t>(record) : dump_.records);
      ++dump_.records;
    }
    const Id status = tree_.Find(root, "pg_status");
    const bool used_groups = !tree_.items(status).empty();
    dump_.leaves_out_messages = LeavesOutMessages(status);
    if (dump_.records == 0 ? used_groups : first != INT64_MAX && first > 0) dump_.known.is_cut = true;
    EndBatches();
    Keep();
    AddCalled(status);
  }

 private:
  struct Group {
    std::string name;
    std::vector<int> members;
    std::optional<uint32_t> index = {};  // index in the tables
  };
  // An operation before its group and call are added to the tables.
  struct Op {
    HangOp op;
    uint64_t p2p_number = 0;
    Id entry = ValueTree::Nothing();
    bool is_retired = false;
  };
  // Sends and receives that were issued together, as a range of ops_, and the entry that follows them.
  struct Batch {
    size_t begin = 0, end = 0;
    HangOp of_all = {};
  };

  void AddNote(const std::string& note) { absl::StrAppend(&dump_.note, dump_.note.empty() ? "" : "; ", note); }

  static std::string GroupName(std::string_view name, std::string_view description) {
    if (description.empty() || description == "undefined") return Safe(name);
    return absl::StrCat(Safe(description), ",", Safe(name));
  }

  void ReadGroups(Id config) {
    const std::span<const Id> entries = tree_.items(config);
    size_t members = 0;
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      const Id info = entries[i + 1];
      if (tree_.items(info).size() > 2 * kMaxKeys) continue;
      std::string_view name = tree_.text(tree_.Find(info, "name"));
      if (name.empty()) name = tree_.text(entries[i]);
      if (name.empty()) continue;  // gloo: the group has no operation
      const std::string_view description = tree_.text(tree_.Find(info, "desc"));
      const size_t group = GroupOf(name, description);
      if (group == kMaxGroups || !groups_[group].members.empty()) continue;
      // A list without information, or beyond the limit, is read once, however many groups refer to it.
      const Id list = tree_.Find(info, "ranks");
      if (unused_lists_.contains(list)) continue;
      std::vector<int> ranks = MembersOf(list);
      dump_.visits += 1 + tree_.items(list).size();
      if (ranks.empty() || members + ranks.size() > kMaxMembers) {
        unused_lists_.insert(list);
        continue;
      }
      members += ranks.size();
      if (description == "default_pg") dump_.world_size = static_cast<int>(ranks.size());
      groups_[group].members = std::move(ranks);
    }
  }

  std::vector<int> MembersOf(Id ranks) const {
    if (tree_.kind(ranks) == Kind::kText) {
      const std::string_view text = tree_.text(ranks);
      return text.size() > kMaxListText ? std::vector<int>() : ReadRankList(text);
    }
    std::vector<int> members;
    for (Id rank : tree_.items(ranks)) {
      const int64_t number = tree_.number(rank);
      if (number < 0 || number >= diagnosis::kMaxRanks || members.size() > kMaxMembers) return {};
      members.push_back(static_cast<int>(number));
    }
    return members;
  }

  // Returns kMaxGroups if there are too many.
  size_t GroupOf(std::string_view name, std::string_view description) {
    const auto [found, is_new] = index_.try_emplace(std::string(name.substr(0, 4 * kMaxText)), groups_.size());
    if (!is_new) return found->second;
    if (groups_.size() == kMaxGroups) {
      index_.erase(found);
      return kMaxGroups;
    }
    groups_.push_back({.name = GroupName(name, description), .members = {}});
    return found->second;
  }

  void ReadEntry(Id entry, uint64_t order) {
    Op read{.op = {},
            .p2p_number = Number(entry, "p2p_seq_id"),
            .entry = entry,
            .is_retired = tree_.is_true(tree_.Find(entry, "retired"))};
    HangOp& op = read.op;
    op.order = order;
    const Id group = tree_.Find(entry, "process_group");
    const std::span<const Id> named = tree_.items(group);
    size_t of = kMaxGroups;
    if (!named.empty()) {
      of = GroupOf(tree_.text(named[0]), named.size() > 1 ? tree_.text(named[1]) : "");
    } else if (group != ValueTree::Nothing()) {
      of = GroupOf(tree_.text(group), "");
    } else {
      const Id id = tree_.Find(entry, "pg_id");
      of = tree_.text(id).empty() ? GroupOf(absl::StrCat(tree_.number(id)), "") : GroupOf(tree_.text(id), "");
    }
    if (of == kMaxGroups) return;
    op.group = static_cast<uint32_t>(of);
    if (const Id id = tree_.Find(entry, "pg_id"); id != ValueTree::Nothing() && !named.empty()) {
      group_of_id_[Number(entry, "pg_id")] = of;
    }
    const bool has_number = tree_.Find(entry, "collective_seq_id") != ValueTree::Nothing();
    op.number = Number(entry, has_number ? "collective_seq_id" : "seq_id");
    const std::string_view state = tree_.text(tree_.Find(entry, "state"));
    op.state = state == "completed" ? OpState::kCompleted
               : state == "started" ? OpState::kStarted
                                    : OpState::kScheduled;
    op.created_ns = Number(entry, "time_created_ns");
    if (tree_.text(tree_.Find(entry, "profiling_name")).starts_with("gloo:")) {
      uint64_t& newest = gloo_newest_[Number(entry, "pg_id")];
      newest = std::max(newest, op.number);
    }
    const auto [name, ends] = NameOf(entry);
    if (name == "send" || name == "recv") {
      op.sends = name == "send";
      op.peer = PeerOf(ends, op.group);
      if (!IsOfLastRun(read)) run_begin_ = ops_.size();
      ops_.push_back(read);
    } else if (name != "coalesced" || (!EndBatch(read) && !tree_.is_true(tree_.Find(entry, "is_p2p")))) {
      // Operations that were issued together share a number, and the last entry stands for all of them.
      if (!ops_.empty() && ops_.back().op.peer < 0 && ops_.back().op.group == op.group &&
          ops_.back().op.number == op.number) {
        ops_.pop_back();
      }
      ops_.push_back(read);
    }
  }

  uint64_t Number(Id entry, std::string_view key) const {
    return static_cast<uint64_t>(std::max<int64_t>(0, tree_.number(tree_.Find(entry, key))));
  }

  // Splits "nccl:send 0->1" into "send" and "0->1".
  std::pair<std::string_view, std::string_view> NameOf(Id entry) const {
    std::string_view name = tree_.text(tree_.Find(entry, "profiling_name")).substr(0, 4 * kMaxText);
    std::string_view ends;
    if (const size_t space = name.find(' '); space != std::string_view::npos) {
      ends = name.substr(space + 1);
      name = name.substr(0, space);
    }
    if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) name.remove_prefix(colon + 1);
    return {name, ends};
  }

  // Parses "1->2" (send), "2<-1" (receive) or "2<-?" (receive from any rank); ranks are within the group.
  int PeerOf(std::string_view ends, size_t group) const {
    const size_t arrow = ends.find_first_of("-<");
    if (arrow == std::string_view::npos || arrow + 2 > ends.size() || ends.size() > kMaxText) return HangOp::kAnyPeer;
    const std::vector<int> peer = ReadRankList(ends.substr(arrow + 2));
    if (peer.size() != 1) return HangOp::kAnyPeer;
    const std::vector<int>& members = groups_[group].members;
    if (members.empty()) return peer[0];
    return static_cast<size_t>(peer[0]) < members.size() ? members[static_cast<size_t>(peer[0])] : HangOp::kAnyPeer;
  }

  // Whether the last operations are sends and receives with the same group and number.
  bool IsOfLastRun(const Op& op) const {
    return !ops_.empty() && ops_.back().op.peer >= 0 && ops_.back().op.group == op.op.group &&
           ops_.back().p2p_number == op.p2p_number;
  }

  // Sends and receives that were issued together: only the entry after them knows their state. Returns false if `end`
  // is not such an entry.
  bool EndBatch(const Op& end) {
    if (!IsOfLastRun(end)) return false;
    if (batches_.empty() || batches_.back().begin != run_begin_) batches_.push_back({.begin = run_begin_});
    batches_.back().end = ops_.size();
    batches_.back().of_all = end.op;
    return true;
  }

  // The last entry after a batch counts. There may be as many such entries as parts, so each part is changed only once.
  void EndBatches() {
    for (const Batch& batch : batches_) {
      dump_.visits += batch.end - batch.begin;
      for (size_t i = batch.begin; i < batch.end; ++i) {
        ops_[i].op.state = batch.of_all.state;
        ops_[i].op.order = batch.of_all.order;
        ops_[i].op.created_ns = batch.of_all.created_ns;
      }
    }
  }

  Amount AmountOf(Id list) const {
    Amount amount;
    const std::span<const Id> tensors = tree_.items(list);
    for (size_t i = 0; i < std::min(tensors.size(), kMaxTensors); ++i) {
      const std::span<const Id> dimensions = tree_.items(tensors[i]);
      uint64_t elements = 1;
      std::string shape;
      for (size_t j = 0; j < std::min(dimensions.size(), kMaxDimensions); ++j) {
        const int64_t size = std::max<int64_t>(0, tree_.number(dimensions[j]));
        elements *= static_cast<uint64_t>(size);
        absl::StrAppend(&shape, j == 0 ? "" : "x", size);
      }
      amount.elements += elements;
      if (amount.shapes.size() < kMaxText) absl::StrAppend(&amount.shapes, i == 0 ? "" : " + ", shape);
    }
    return amount;
  }

  std::string TypesOf(Id list) const {
    if (tree_.kind(list) == Kind::kText) return Safe(tree_.text(list));
    std::string text;
    const std::span<const Id> types = tree_.items(list);
    for (size_t i = 0; i < std::min(types.size(), kMaxTensors); ++i) {
      const std::string type = Safe(tree_.text(types[i]));
      // A list of equal types is shown as one.
      if (text.size() < kMaxText && !text.ends_with(type)) absl::StrAppend(&text, text.empty() ? "" : "+", type);
    }
    return text;
  }

  std::string FramesOf(Id entry) const {
    std::string text;
    const std::span<const Id> frames = tree_.items(tree_.Find(entry, "frames"));
    for (size_t i = 0; i < std::min(frames.size(), kFrames); ++i) {
      if (tree_.items(frames[i]).size() > 2 * kMaxKeys) continue;
      std::string line = Safe(absl::StrCat(Safe(tree_.text(tree_.Find(frames[i], "name"))), " (",
                                           Safe(tree_.text(tree_.Find(frames[i], "filename"))), ":",
                                           tree_.number(tree_.Find(frames[i], "line")), ")"));
      std::replace(line.begin(), line.end(), '\n', ' ');
      absl::StrAppend(&text, text.empty() ? "" : "\n", line);
    }
    return text;
  }

  HangCall CallOf(const Op& op) const {
    HangCall call;
    call.name = Safe(NameOf(op.entry).first);
    call.frames = FramesOf(op.entry);
    const Compared compared = op.op.peer < 0 ? ComparedOf(call.name) : Compared();
    if (compared.input) {
      call.type = TypesOf(tree_.Find(op.entry, "input_dtypes"));
      const Amount input = AmountOf(tree_.Find(op.entry, "input_sizes"));
      call.amount = absl::StrCat(input.elements);
      call.sizes = input.shapes;
    }
    if (compared.output) {
      if (call.type.empty()) call.type = TypesOf(tree_.Find(op.entry, "output_dtypes"));
      const Amount output = AmountOf(tree_.Find(op.entry, "output_sizes"));
      absl::StrAppend(&call.amount, " to ", output.elements);
      if (call.sizes != output.shapes) absl::StrAppend(&call.sizes, call.sizes.empty() ? "" : " to ", output.shapes);
    }
    return call;
  }

  // Gloo's recorder has no entries for sends and receives, but its groups include them in their operation counts.
  bool LeavesOutMessages(Id status) {
    const std::span<const Id> entries = tree_.items(status);
    for (size_t i = 0; i + 1 < entries.size() && !gloo_newest_.empty(); i += 2) {
      ++dump_.visits;
      const std::optional<uint64_t> group = GroupNumber(entries[i]);
      const auto newest = group ? gloo_newest_.find(*group) : gloo_newest_.end();
      if (newest == gloo_newest_.end() || tree_.items(entries[i + 1]).size() > 2 * kMaxKeys) continue;
      if (Number(entries[i + 1], "last_enqueued_collective") > newest->second) return true;
    }
    return false;
  }

  // The number by which a status names a group.
  std::optional<uint64_t> GroupNumber(Id key) const {
    const std::string_view text = tree_.text(key);
    uint64_t number = 0;
    if (text.size() > kMaxText || !absl::SimpleAtoi(std::string(text), &number)) return std::nullopt;
    return number;
  }

  // The groups with members, ordered by the numbers that are their names; empty if a name is not a number.
  std::vector<size_t> GroupsInOrder() const {
    std::vector<std::pair<uint64_t, size_t>> numbered;
    for (const auto& [name, group] : index_) {
      if (groups_[group].members.empty()) continue;
      uint64_t number = 0;
      if (!absl::SimpleAtoi(name, &number)) return {};
      numbered.emplace_back(number, group);
    }
    std::sort(numbered.begin(), numbered.end());
    std::vector<size_t> groups;
    for (const auto& [number, group] : numbered) groups.push_back(group);
    return groups;
  }

  void AddCalled(Id status) {
    if (!gloo_newest_.empty()) return;  // gloo's status counts messages, too
    const std::vector<size_t> order = GroupsInOrder();
    std::set<size_t> with_entries;
    for (const auto& [id, group] : group_of_id_) {
      with_entries.insert(group);
      (id < order.size() && order[id] == group ? dump_.confirms_order : dump_.contradicts_order) = true;
    }
    const std::span<const Id> entries = tree_.items(status);
    for (size_t i = 0; i + 1 < entries.size(); i += 2) {
      ++dump_.visits;
      const std::optional<uint64_t> number = GroupNumber(entries[i]);
      if (!number || tree_.items(entries[i + 1]).size() > 2 * kMaxKeys) continue;
      const uint64_t id = *number;
      const Id last = tree_.Find(entries[i + 1], "last_enqueued_collective");
      if (id >= order.size() || last == ValueTree::Nothing() || with_entries.contains(order[id])) continue;
      const std::optional<uint32_t> index = IndexOf(groups_[order[id]]);
      if (index) dump_.called_by_status[*index] = Number(entries[i + 1], "last_enqueued_collective");
    }
  }

  // Recorders without states still report for each operation whether its group is done with it.
  void CompleteRetired() {
    const bool has_states =
        std::any_of(ops_.begin(), ops_.end(), [](const Op& read) { return read.op.state != OpState::kScheduled; });
    if (has_states) return;
    for (Op& read : ops_) {
      if (read.is_retired) read.op.state = OpState::kCompleted;
    }
  }

  // Collectives of a group end in order, and so do messages from one rank to another. So operations before a completed
  // one have ended. Some recorders do not follow the states of operations that were issued together.
  void CompletePassed() {
    std::set<std::tuple<uint32_t, int, bool>> passed;
    for (size_t i = ops_.size(); i-- > 0;) {
      HangOp& op = ops_[i].op;
      const std::tuple<uint32_t, int, bool> way(op.group, op.peer, op.sends);
      if (op.state == OpState::kCompleted) {
        passed.insert(way);
      } else if (passed.contains(way)) {
        op.state = OpState::kCompleted;
      }
    }
  }

  // Keeps the operations that may explain a hang.
  void Keep() {
    std::stable_sort(ops_.begin(), ops_.end(), [](const Op& a, const Op& b) { return a.op.order < b.op.order; });
    CompleteRetired();
    CompletePassed();
    std::vector<bool> kept(ops_.size());
    size_t waiting = 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
      kept[i] = ops_[i].op.state != OpState::kCompleted && waiting++ < kMaxWaiting;
    }
    std::map<uint32_t, size_t> newest;
    size_t count = std::min(waiting, kMaxWaiting);
    for (size_t i = ops_.size(); i-- > 0;) {
      if (kept[i] || ops_[i].op.state != OpState::kCompleted || ops_[i].op.peer >= 0) continue;
      kept[i] = newest[ops_[i].op.group]++ < kOpsOfGroup && count < kMaxOps;
      count += kept[i] ? 1 : 0;
    }
    // The last operation is kept even if it is a message: its frames show where the rank was last.
    if (!kept.empty()) kept.back() = true;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (kept[i] && !KeepOne(ops_[i])) {
        AddNote("the rest is left out: all dumps together have too many groups or operations");
        dump_.known.is_partial = dump_.known.is_cut = true;
        break;
      }
    }
    // At these limits, groups without an operation may have had one.
    if (count >= kMaxOps || groups_.size() == kMaxGroups) dump_.known.is_cut = true;
    dump_.known.ops.shrink_to_fit();
  }

  // The index in the tables, which compare all members.
  std::optional<uint32_t> IndexOf(Group& group) {
    if (!group.index) group.index = tables_.AddGroup(group.name, group.members);
    return group.index;
  }

  bool KeepOne(Op& op) {
    const std::optional<uint32_t> known = IndexOf(groups_[op.op.group]);
    const std::optional<uint32_t> call = tables_.AddCall(CallOf(op));
    if (!known || !call) return false;
    op.op.group = *known;
    op.op.call = *call;
    dump_.known.ops.push_back(op.op);
    return true;
  }

  const ValueTree& tree_;
  HangTables& tables_;
  FlightDump& dump_;
  std::vector<Group> groups_;
  std::map<std::string, size_t> index_;
  std::vector<Op> ops_;
  size_t run_begin_ = 0;  // begin of the last sends and receives in ops_ that share a number
  std::vector<Batch> batches_;
  std::set<Id> unused_lists_;                 // unusable lists of members
  std::map<uint64_t, uint64_t> gloo_newest_;  // number of the newest collective by pg_id, for gloo groups
  std::map<uint64_t, size_t> group_of_id_;    // by pg_id
};

}  // namespace

FlightDump ReadFlightDump(ByteSource& source, HangTables& tables, DumpMemory& memory) {
  FlightDump dump;
  ValueTree& tree = memory.tree;
  tree.Clear();
  std::string first(1, '\0');
  first.resize(source.Read(first.data(), first.size()));
  const bool is_json = first.find_first_of("{ \t\r\n\xef") == 0;
  source.PutBack(std::move(first));
  if (!is_json) {
    std::string& bytes = memory.bytes;
    size_t length = 0;
    while (true) {
      if (length + kPieceBytes > bytes.size()) bytes.resize(std::max(2 * bytes.size(), kPieceBytes));
      const size_t got = source.Read(bytes.data() + length, kPieceBytes);
      if (got == 0) break;
      length += got;
      if (length > kMaxPickleBytes) {
        dump.note = absl::StrCat("it is larger than ", kMaxPickleBytes >> 20, " MiB");
        length = kMaxPickleBytes;
        break;
      }
    }
    const std::string problem = ReadPickle(std::string_view(bytes).substr(0, length), tree);
    if (dump.note.empty()) dump.note = source.damage().empty() ? problem : source.damage();
  } else {
    auto stream = std::make_unique<JsonStream>(source);
    TreeBuilder builder(*stream, tree);
    dump.note = ReadJson(source, *stream, builder);
    builder.Finish();
    if (tree.is_full()) dump.note = "it holds too many values";
  }
  dump.known.is_partial = !dump.note.empty();
  DumpReader(tree, tables, dump).Read();
  return dump;
}

}  // namespace taskd::readers
