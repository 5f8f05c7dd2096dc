#include "agent/trace/trace_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "marks/comm_name.h"
#include "marks/step_name.h"
#include "nlohmann/json.hpp"

namespace taskd::trace {
namespace {

// Above every pid, which is a rank: a viewer would take a thread whose tid is a pid for that process's main thread.
constexpr int kFirstTid = 200000;
constexpr size_t kFlushBytes = 1 << 20;
constexpr size_t kMaxCachedNames = 4096;
// Tracks of one rank; further groups and streams share the last one of their kind.
constexpr size_t kMaxTracks = 512;

// In the order in which the tracks stand.
enum class Kind { kVerdict, kStep, kForward, kDataloader, kCheckpoint, kCommunication, kOther };
constexpr std::array<const char*, 7> kKindNames = {"verdict",         "step",          "forward", "dataloader",
                                                   "save_checkpoint", "communication", "other"};
const char* Name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

constexpr std::array<const char*, kCommOps> kOpNames = {
    "other",  "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter",
    "gather", "all_to_all", "send",       "recv",           "send_recv", "barrier"};

// What the events of one range share.
struct Info {
  Kind kind = Kind::kOther;
  std::string group;  // of communication: the track's name after the kind's
  std::string text;   // ,"cat":…,"name":…
  std::string args;   // members
  int64_t step = -1;
};
using InfoPtr = std::shared_ptr<const Info>;

Kind DefaultKind(std::string_view name) {
  if (StepNumber(name)) return Kind::kStep;
  if (name == "forward") return Kind::kForward;
  if (name == "dataloader") return Kind::kDataloader;
  if (name == "save_checkpoint") return Kind::kCheckpoint;
  return Kind::kOther;
}

struct Track {
  std::string name;
  int sort_index = 0;
  TraceLanes lanes;
  std::vector<int> tids;  // of its lanes; 0: not written yet
};

struct OpenRange {
  uint64_t start_ns = 0;
  uint32_t process_id = 0;
  InfoPtr info;
  Track* track = nullptr;
};

}  // namespace

std::string JsonString(std::string_view text) {
  // A trace may be written to a terminal.
  return PrintableJson(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void AppendMicroseconds(uint64_t ns, std::string& out) {
  char digits[40];
  if (ns < uint64_t{1} << 53) {
    double value = static_cast<double>(ns) / 1000;
    if (static_cast<uint64_t>(value * 1000.0) != ns) {
      do value = std::nextafter(value, HUGE_VAL);
      while (static_cast<uint64_t>(value * 1000.0) < ns);
      out.append(digits, std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::fixed).ptr);
      return;
    }
  }
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), ns / 1000).ptr);
  if (uint64_t rest = ns % 1000; rest != 0) {
    out += '.';
    out += static_cast<char>('0' + rest / 100);
    out += static_cast<char>('0' + rest / 10 % 10);
    out += static_cast<char>('0' + rest % 10);
  }
}

class TraceWriter::Impl {
 public:
  Impl(uint64_t base_ns, Write write) : base_ns_(base_ns), write_(std::move(write)) {
    // By the producer the readers of profilers' traces know ours, and leave them alone.
    out_ = R"({"displayTimeUnit":"ms","producer":"taskd trace","traceEvents":[)";
  }

  void BeginRank(TraceRank rank);
  void Add(const MarkRecord& record);
  void GlobalInstant(std::string_view name, std::string_view args, uint64_t time_ns);
  void EndRank();
  absl::Status Finish(std::string_view other_data);

  absl::Status status_;
  uint64_t events_ = 0;
  uint64_t unmatched_ = 0;
  uint64_t left_out_ = 0;

 private:
  struct SpanSeen {
    uint64_t first_ns = UINT64_MAX, last_ns = 0;  // relative to the base
  };
  using OpenRanges = std::map<uint64_t, OpenRange>;  // by id: the oldest comes first

  InfoPtr InfoOf(const MarkRecord& record);
  InfoPtr Describe(std::string_view name, std::string_view domain);
  void DescribeCommunication(std::string_view name, Info& info);
  std::string GroupTitle(std::string_view name, const GroupInfo* group) const;
  Track& TrackOf(const Info& info, bool device, uint32_t stream);
  int Tid(Track& track, int lane);

  void Start(OpenRanges& open, const MarkRecord& record);
  void End(OpenRanges& open, const MarkRecord& record);
  void Close(const OpenRange& range, uint64_t end_ns, bool cut);
  void CloseCut(OpenRanges& open, OpenRanges::iterator it, bool device);
  void CloseAll(OpenRanges& open, bool device);
  void Instant(const MarkRecord& record, const Info& info);
  void Spans();
  bool Selected(uint64_t first_ns, uint64_t last_ns) const;
  uint64_t Relative(uint64_t time_ns) const;

  void Metadata(std::string_view name, int tid, std::string_view arg, std::string_view value);
  void Event(char phase, int tid, uint64_t ts);
  void Args(std::string_view args, std::string_view more);
  void Separate() {
    if (!first_) out_ += ",\n";
    first_ = false;
  }
  void Flush();

  const uint64_t base_ns_;
  const Write write_;
  std::string out_;
  bool first_ = true;
  int next_tid_ = kFirstTid;

  // Of the present rank.
  TraceRank rank_;
  std::vector<SpanSeen> spans_;
  std::unordered_map<std::string, const GroupInfo*> groups_;
  std::map<std::string, int> labels_;  // how many groups have it
  std::map<std::tuple<Kind, bool, std::string, uint32_t>, Track> tracks_;
  std::set<std::string> track_names_;
  std::unordered_map<std::string, InfoPtr> cache_;  // by domain and name
  std::unordered_map<uint64_t, InfoPtr> names_;     // by id: only an id's first record has its name
  std::deque<uint64_t> names_order_;
  OpenRanges host_, device_;
  std::map<uint32_t, uint64_t> last_ns_;  // of each process: the ranges of one that died end with it
  uint64_t last_device_ns_ = 0;
};

void TraceWriter::Impl::BeginRank(TraceRank rank) {
  rank_ = std::move(rank);
  spans_.assign(rank_.spans.size(), SpanSeen());
  for (const GroupInfo& group : rank_.groups) {
    groups_[group.name] = &group;
    if (!group.label.empty()) ++labels_[group.label];
  }
  Metadata("process_name", 0, "name", JsonString(rank_.name));
  Metadata("process_sort_index", 0, "sort_index", absl::StrCat(rank_.sort_index));
}

void TraceWriter::Impl::Add(const MarkRecord& record) {
  uint64_t& last = record.device ? last_device_ns_ : last_ns_[record.process_id];
  last = std::max(last, record.time_ns);
  OpenRanges& open = record.device ? device_ : host_;
  switch (record.phase) {
    case MarkRecord::Phase::kStart:
      return Start(open, record);
    case MarkRecord::Phase::kEnd:
      return End(open, record);
    case MarkRecord::Phase::kInstant:
      if (InfoPtr info = InfoOf(record)) return Instant(record, *info);
      ++unmatched_;
  }
}

// Of a record with a name: it is kept for the other records of its id. Null: an id without a name.
InfoPtr TraceWriter::Impl::InfoOf(const MarkRecord& record) {
  if (record.domain.empty() && record.name.empty()) {
    auto it = names_.find(record.id);
    return it == names_.end() ? nullptr : it->second;
  }
  InfoPtr info = Describe(record.name, record.domain);
  names_[record.id] = info;
  names_order_.push_back(record.id);
  if (names_order_.size() > kMaxOpen) {
    names_.erase(names_order_.front());
    names_order_.pop_front();
  }
  return info;
}

InfoPtr TraceWriter::Impl::Describe(std::string_view name, std::string_view domain) {
  std::string key = absl::StrCat(absl::string_view(domain.data(), domain.size()), absl::string_view("\0", 1),
                                 absl::string_view(name.data(), name.size()));
  if (auto it = cache_.find(key); it != cache_.end()) return it->second;
  auto info = std::make_shared<Info>();
  if (domain == "communication") {
    info->kind = Kind::kCommunication;
    DescribeCommunication(name, *info);
  } else {
    if (domain == "default") {
      info->kind = DefaultKind(name);
      info->step = StepNumber(name).value_or(-1);
    } else {
      info->args = absl::StrCat("\"domain\":", JsonString(domain));
    }
    std::string title = JsonString(name.empty() ? "(no name)" : name);
    info->text = absl::StrCat(",\"cat\":\"", Name(info->kind), "\",\"name\":", title);
  }
  if (cache_.size() >= kMaxCachedNames) cache_.clear();
  return cache_.emplace(std::move(key), std::move(info)).first->second;
}

void TraceWriter::Impl::DescribeCommunication(std::string_view name, Info& info) {
  std::string storage;
  CommName comm;
  std::string title;
  if (ParseCommName(name, storage, comm)) {
    auto it = groups_.find(std::string(comm.group));
    const GroupInfo* group = it == groups_.end() ? nullptr : it->second;
    info.group = GroupTitle(comm.group, group);
    title = absl::StrCat(kOpNames[static_cast<size_t>(comm.op)], info.group.empty() ? "" : " ", info.group);
    info.args =
        absl::StrCat("\"group\":", JsonString(comm.group), ",\"op\":\"", kOpNames[static_cast<size_t>(comm.op)], "\"");
    if (comm.bytes != 0) absl::StrAppend(&info.args, ",\"bytes\":", comm.bytes);
    if (comm.peer >= 0) {
      std::vector<int> members;
      if (group != nullptr) members = ExpandMembers(group->members, static_cast<size_t>(comm.peer) + 1);
      if (members.size() > static_cast<size_t>(comm.peer)) {
        absl::StrAppend(&info.args, ",\"peer\":", members[static_cast<size_t>(comm.peer)]);
      } else {
        absl::StrAppend(&info.args, ",\"peer_in_group\":", comm.peer);
      }
    }
  } else {
    title = name.empty() ? "(no name)" : name;
  }
  if (comm.op == CommOp::kOther) {
    absl::StrAppend(&info.args, info.args.empty() ? "" : ",", "\"mark\":", JsonString(name));
  }
  info.text = absl::StrCat(R"(,"cat":"communication","name":)", JsonString(title));
}

// The label if it is unique among the rank's groups, else the name.
std::string TraceWriter::Impl::GroupTitle(std::string_view name, const GroupInfo* group) const {
  if (group == nullptr || group->label.empty()) return std::string(name);
  auto it = labels_.find(group->label);
  return it != labels_.end() && it->second == 1 ? group->label
                                                : absl::StrCat(group->label, " (", std::string(name), ")");
}

Track& TraceWriter::Impl::TrackOf(const Info& info, bool device, uint32_t stream) {
  auto key = std::make_tuple(info.kind, device, info.group, device ? stream : 0);
  auto it = tracks_.find(key);
  if (it != tracks_.end()) return it->second;
  bool shared = tracks_.size() >= kMaxTracks;
  if (shared) {
    key = std::make_tuple(info.kind, device, std::string("\0", 1), 0);
    it = tracks_.find(key);
    if (it != tracks_.end()) return it->second;
  }
  std::string name = Name(info.kind);
  if (!shared && !info.group.empty()) absl::StrAppend(&name, " ", info.group);
  if (shared) name += ", further ones";
  if (device) absl::StrAppend(&name, shared ? " (device)" : absl::StrCat(" (device, stream ", stream, ")"));
  Track& track = tracks_[std::move(key)];
  track.name = std::move(name);
  // Device below host, and room for the lanes of each.
  track.sort_index = static_cast<int>(info.kind) * 1000000 + (device ? 500000 : 0) +
                     static_cast<int>(tracks_.size()) * TraceLanes::kMax;
  return track;
}

int TraceWriter::Impl::Tid(Track& track, int lane) {
  if (track.tids.size() <= static_cast<size_t>(lane)) track.tids.resize(static_cast<size_t>(lane) + 1);
  int& tid = track.tids[static_cast<size_t>(lane)];
  if (tid != 0) return tid;
  tid = next_tid_++;
  std::string name = lane == 0 ? track.name : absl::StrCat(track.name, " ", lane + 1);
  for (int i = 1; !track_names_.insert(name).second; ++i) {
    name = absl::StrCat(track.name, " ", lane + 1, " (", i, ")");
  }
  Metadata("thread_name", tid, "name", JsonString(name));
  Metadata("thread_sort_index", tid, "sort_index", absl::StrCat(track.sort_index + lane));
  return tid;
}

void TraceWriter::Impl::Start(OpenRanges& open, const MarkRecord& record) {
  InfoPtr info = InfoOf(record);
  if (info == nullptr) {
    ++unmatched_;
    return;
  }
  if (auto it = open.find(record.id); it != open.end()) CloseCut(open, it, record.device);  // another life of the rank
  if (open.size() >= kMaxOpen) CloseCut(open, open.begin(), record.device);
  Track& track = TrackOf(*info, record.device, record.thread_id);
  track.lanes.Open(Relative(record.time_ns));
  open[record.id] = {record.time_ns, record.process_id, std::move(info), &track};
}

void TraceWriter::Impl::End(OpenRanges& open, const MarkRecord& record) {
  auto it = open.find(record.id);
  if (it == open.end() || it->second.process_id != record.process_id) {
    ++unmatched_;
    return;
  }
  OpenRange range = std::move(it->second);
  open.erase(it);
  Close(range, record.time_ns, false);
}

void TraceWriter::Impl::Close(const OpenRange& range, uint64_t end_ns, bool cut) {
  uint64_t start = Relative(range.start_ns);
  uint64_t end = std::max(start, Relative(end_ns));
  bool selected = Selected(range.start_ns, std::max(range.start_ns, end_ns));
  if (range.info->step >= 0 && selected) {
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (range.info->step < rank_.spans[i].first_step || range.info->step > rank_.spans[i].last_step) continue;
      spans_[i].first_ns = std::min(spans_[i].first_ns, start);
      spans_[i].last_ns = std::max(spans_[i].last_ns, end);
    }
  }
  // A range that is not written must not push others to further lanes: an empty one takes no place.
  int lane = range.track->lanes.Close(start, selected ? end : start);
  if (!selected) return;
  if (lane < 0) {
    ++left_out_;
    return;
  }
  int tid = Tid(*range.track, lane);
  Event('X', tid, start);
  out_ += ",\"dur\":";
  AppendMicroseconds(end - start, out_);
  out_ += range.info->text;
  Args(range.info->args, cut ? "\"open\":true" : "");
}

// The range has no end: it goes up to the last thing that its process did, or to the end of what was asked for.
void TraceWriter::Impl::CloseCut(OpenRanges& open, OpenRanges::iterator it, bool device) {
  OpenRange range = std::move(it->second);
  open.erase(it);
  uint64_t end = device ? last_device_ns_ : last_ns_[range.process_id];
  uint64_t selected = rank_.windows.empty() ? UINT64_MAX : 0;
  for (const TraceWindow& window : rank_.windows) selected = std::max(selected, window.last_ns);
  Close(range, std::max(range.start_ns, std::min(end, selected)), true);
}

// The latest first: they lie within those that began earlier.
void TraceWriter::Impl::CloseAll(OpenRanges& open, bool device) {
  std::vector<std::pair<uint64_t, uint64_t>> order;
  for (const auto& [id, range] : open) order.emplace_back(range.start_ns, id);
  std::sort(order.rbegin(), order.rend());
  for (const auto& [start, id] : order) CloseCut(open, open.find(id), device);
}

void TraceWriter::Impl::Instant(const MarkRecord& record, const Info& info) {
  if (!Selected(record.time_ns, record.time_ns)) return;
  int tid = Tid(TrackOf(info, record.device, record.thread_id), 0);
  Event('i', tid, Relative(record.time_ns));
  out_ += ",\"s\":\"t\"";
  out_ += info.text;
  Args(info.args, "");
}

void TraceWriter::Impl::GlobalInstant(std::string_view name, std::string_view args, uint64_t time_ns) {
  Info info;
  info.kind = Kind::kVerdict;
  int tid = Tid(TrackOf(info, false, 0), 0);
  Event('i', tid, time_ns > base_ns_ ? time_ns - base_ns_ : 0);
  absl::StrAppend(&out_, R"(,"s":"g","cat":"verdict","name":)", JsonString(name));
  Args(args, "");
}

void TraceWriter::Impl::Spans() {
  Info info;
  info.kind = Kind::kVerdict;
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (spans_[i].first_ns > spans_[i].last_ns) continue;
    Track& track = TrackOf(info, false, 0);
    int lane = track.lanes.Close(spans_[i].first_ns, spans_[i].last_ns);
    if (lane < 0) {
      ++left_out_;
      continue;
    }
    int tid = Tid(track, lane);
    Event('X', tid, spans_[i].first_ns);
    out_ += ",\"dur\":";
    AppendMicroseconds(spans_[i].last_ns - spans_[i].first_ns, out_);
    absl::StrAppend(&out_, R"(,"cat":"verdict","name":)", JsonString(rank_.spans[i].name));
    Args(rank_.spans[i].args, "");
  }
}

void TraceWriter::Impl::EndRank() {
  CloseAll(host_, false);
  CloseAll(device_, true);
  Spans();
  groups_.clear();
  labels_.clear();
  tracks_.clear();
  track_names_.clear();
  cache_.clear();
  names_.clear();
  names_order_.clear();
  last_ns_.clear();
  last_device_ns_ = 0;
  rank_ = TraceRank();
  spans_.clear();
}

bool TraceWriter::Impl::Selected(uint64_t first_ns, uint64_t last_ns) const {
  if (rank_.windows.empty()) return true;
  return std::any_of(rank_.windows.begin(), rank_.windows.end(), [&](const TraceWindow& window) {
    // What only touches a window belongs to the step beside it.
    return first_ns == window.first_ns || (first_ns < window.last_ns && last_ns > window.first_ns);
  });
}

uint64_t TraceWriter::Impl::Relative(uint64_t time_ns) const {
  auto relative = static_cast<int64_t>(time_ns - base_ns_ - static_cast<uint64_t>(rank_.clock_offset_ns));
  return relative < 0 ? 0 : static_cast<uint64_t>(relative);
}

void TraceWriter::Impl::Metadata(std::string_view name, int tid, std::string_view arg, std::string_view value) {
  Separate();
  absl::StrAppend(&out_, R"({"ph":"M","pid":)", rank_.rank);
  if (tid != 0) absl::StrAppend(&out_, ",\"tid\":", tid);
  ((((((out_ += R"(,"name":")") += name) += R"(","args":{")") += arg) += "\":") += value) += "}}";
}

void TraceWriter::Impl::Event(char phase, int tid, uint64_t ts) {
  Separate();
  ++events_;
  absl::StrAppend(&out_, R"({"ph":")", std::string(1, phase), R"(","pid":)", rank_.rank, ",\"tid\":", tid, ",\"ts\":");
  AppendMicroseconds(ts, out_);
}

// Ends an event.
void TraceWriter::Impl::Args(std::string_view args, std::string_view more) {
  if (!args.empty() || !more.empty()) {
    (((out_ += ",\"args\":{") += args) += args.empty() || more.empty() ? "" : ",") += more;
    out_ += '}';
  }
  out_ += '}';
  if (out_.size() >= kFlushBytes) Flush();
}

absl::Status TraceWriter::Impl::Finish(std::string_view other_data) {
  // Strings: doubles do not hold Unix ns.
  ((out_ += "],\n\"otherData\":{") += other_data) += other_data.empty() ? "" : ",";
  absl::StrAppend(&out_, "\"unix_start_ns\":\"", base_ns_, "\",\"events\":\"", events_, "\",\"unmatched\":\"",
                  unmatched_, "\",\"left_out\":\"", left_out_, "\"}}\n");
  Flush();
  return status_;
}

void TraceWriter::Impl::Flush() {
  if (status_.ok()) status_ = write_(out_);
  out_.clear();
}

TraceWriter::TraceWriter(uint64_t base_ns, Write write) : impl_(std::make_unique<Impl>(base_ns, std::move(write))) {}
TraceWriter::~TraceWriter() = default;
void TraceWriter::BeginRank(TraceRank rank) { impl_->BeginRank(std::move(rank)); }
void TraceWriter::Add(const MarkRecord& record) { impl_->Add(record); }
void TraceWriter::GlobalInstant(std::string_view name, std::string_view args, uint64_t time_ns) {
  impl_->GlobalInstant(name, args, time_ns);
}
void TraceWriter::EndRank() { impl_->EndRank(); }
absl::Status TraceWriter::Finish(std::string_view other_data) { return impl_->Finish(other_data); }
const absl::Status& TraceWriter::status() const { return impl_->status_; }
uint64_t TraceWriter::events() const { return impl_->events_; }
uint64_t TraceWriter::unmatched() const { return impl_->unmatched_; }
uint64_t TraceWriter::left_out() const { return impl_->left_out_; }

}  // namespace taskd::trace
