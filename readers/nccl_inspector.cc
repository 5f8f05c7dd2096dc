#include "readers/nccl_inspector.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/json_stream.h"
#include "readers/number_text.h"
#include "readers/trace_events.h"

namespace taskd::readers {
namespace {

constexpr size_t kMaxChannels = 512;  // per process
constexpr uint64_t kMaxOpUs = uint64_t{1} << 42;
constexpr int kMaxShift = 56;
constexpr uint64_t kUnixUs = 4'000'000'000'000'000;  // after the year 2090, so not a time of day

using Channel = InspectorSequence::Channel;

class RecordHandler : public JsonHandler<RecordHandler> {
 public:
  RecordHandler(JsonStream& stream, InspectorProcess& process) : JsonHandler(stream), process_(process) {}

  bool Name(std::string_view name) {
    field_ = Field::kNone;
    if (depth() == 1) {
      part_ = PartOf(name);
      if (part_ == Part::kCollective || part_ == Part::kPointToPoint) op_ = Op{.kind = part_};
    }
    if (depth() == 2) field_ = FieldOf(name);
    return true;
  }
  bool Text(std::string_view text) {
    switch (std::exchange(field_, Field::kNone)) {
      case Field::kId:
        id_ = CutUtf8(ValidUtf8(std::string(text.substr(0, 2 * kMaxNameBytes))), kMaxNameBytes);
        break;
      case Field::kHost:
        host_ = text.substr(0, kMaxNameBytes);
        break;
      case Field::kOp:
        if (op_) op_->op = OpOfName(text);
        break;
      default:
        break;
    }
    return true;
  }
  bool Number(std::string_view text) {
    const Field field = std::exchange(field_, Field::kNone);
    if (field == Field::kId) id_ = text.substr(0, kMaxNameBytes);
    if (field == Field::kRank) rank_ = ReadNumber(text, -1);
    if (field == Field::kSize) size_ = ReadNumber(text, 0);
    if (field == Field::kPid) pid_ = ReadNumber<int64_t>(text, 0);
    if (field == Field::kTime) time_us_ = ReadNumber<uint64_t>(text, 0);
    if (!op_) return true;
    if (field == Field::kNumber) op_->number = ReadNumber<uint64_t>(text, 0);
    if (field == Field::kBytes) op_->bytes = ReadNumber<uint64_t>(text, 0);
    if (field == Field::kPeer) op_->peer = ReadNumber(text, -1);
    if (field == Field::kDuration) op_->duration_us = ReadNumber(text, 0.0);  // some values have fractions
    return true;
  }
  // A record ends here. From version 4.3 on the header is that of an earlier record.
  bool End(bool) { return depth() > 0 || AddRecord(); }

  bool has_several() const { return has_several_; }

 private:
  enum class Part : uint8_t { kOther, kHeader, kMetadata, kCollective, kPointToPoint };
  enum class Field : uint8_t { kNone, kId, kRank, kSize, kHost, kPid, kTime, kOp, kNumber, kBytes, kPeer, kDuration };
  struct Op {
    Part kind = Part::kOther;
    CommOp op = CommOp::kOther;
    uint64_t number = 0, bytes = 0;
    int peer = -1;
    double duration_us = 0;
  };

  static Part PartOf(std::string_view name) {
    if (name == "header") return Part::kHeader;
    if (name == "metadata") return Part::kMetadata;
    if (name == "coll_perf") return Part::kCollective;
    if (name == "p2p_perf") return Part::kPointToPoint;
    return Part::kOther;
  }
  Field FieldOf(std::string_view name) const {
    if (part_ == Part::kHeader) {
      return name == "id"        ? Field::kId
             : name == "rank"    ? Field::kRank
             : name == "n_ranks" ? Field::kSize
                                 : Field::kNone;
    }
    if (part_ == Part::kMetadata) {
      return name == "hostname"            ? Field::kHost
             : name == "pid"               ? Field::kPid
             : name == "dump_timestamp_us" ? Field::kTime
                                           : Field::kNone;
    }
    if (part_ == Part::kOther) return Field::kNone;
    if (name == "coll" || name == "p2p") return Field::kOp;
    if (name == "p2p_peer") return Field::kPeer;
    name.remove_prefix(std::min(name.find('_'), name.size()));
    if (name == "_sn") return Field::kNumber;
    if (name == "_msg_size_bytes") return Field::kBytes;
    if (name == "_exec_time_us") return Field::kDuration;
    return Field::kNone;
  }

  bool AddRecord() {
    ++process_.records;
    if (process_.records == 1 || process_.pid == 0) {
      process_.host = ValidUtf8(host_);
      process_.pid = pid_;
    }
    has_several_ = process_.pid != pid_ || process_.host != ValidUtf8(host_);
    if (has_several_) return false;
    if (time_us_ < kUnixUs) process_.last_us = std::max(process_.last_us, time_us_);
    const std::optional<Op> op = std::exchange(op_, std::nullopt);
    if (!op || op->op == CommOp::kOther || id_.empty() || !(op->duration_us > 0) ||
        !(op->duration_us < static_cast<double>(kMaxOpUs)) || size_ < 2 || size_ > diagnosis::kMaxRanks || rank_ < 0 ||
        rank_ >= size_) {
      return true;
    }
    const auto known = process_.communicators.find(id_);
    if (known == process_.communicators.end() && process_.communicators.size() >= kMaxGroups) return true;
    InspectorCommunicator& communicator = process_.communicators[id_];
    communicator.rank = rank_;
    communicator.size = size_;
    const bool is_pair = op->kind == Part::kPointToPoint;
    const Channel channel{
        .op = op->op,
        .size_log2 = static_cast<uint8_t>(op->bytes == 0 ? 0 : std::bit_width(op->bytes) - 1),
        .peer = is_pair && op->peer >= 0 && op->peer < size_ ? op->peer : -1,
    };
    InspectorSequence& sequence = communicator.sequences[is_pair ? 1 : 0];
    if (!sequence.channels.contains(channel) && channels_++ >= kMaxChannels) return true;
    const auto duration_ns = static_cast<uint64_t>(op->duration_us * 1000);
    sequence.Add(op->number, channel, std::min(op->bytes, uint64_t{1} << 44), std::max<uint64_t>(1, duration_ns));
    return true;
  }

  InspectorProcess& process_;
  Part part_ = Part::kOther;
  Field field_ = Field::kNone;
  std::string id_, host_;
  int rank_ = -1, size_ = 0;
  int64_t pid_ = 0;
  uint64_t time_us_ = 0;
  std::optional<Op> op_;
  size_t channels_ = 0;
  bool has_several_ = false;
};

}  // namespace

void InspectorSequence::Add(uint64_t number, const Channel& channel, uint64_t bytes, uint64_t duration_ns) {
  while (shift < kMaxShift && number >> shift >= kMaxWindows) Widen(shift + 1);
  const uint64_t window = std::min(number >> shift, kMaxWindows - 1);
  last_window = std::max(last_window, window);
  Sums& sums = channels[channel][static_cast<uint32_t>(window)];
  ++sums.count;
  sums.bytes += bytes;
  sums.duration_ns += duration_ns;
  sums.min_ns = std::min(sums.min_ns, duration_ns);
}

void InspectorSequence::Widen(int wanted) {
  const int by = wanted - shift;
  if (by <= 0) return;
  for (auto& [channel, windows] : channels) {
    std::map<uint32_t, Sums> wider;
    for (const auto& [window, sums] : windows) {
      Sums& sum = wider[window >> by];
      sum.count += sums.count;
      sum.bytes += sums.bytes;
      sum.duration_ns += sums.duration_ns;
      sum.min_ns = std::min(sum.min_ns, sums.min_ns);
    }
    windows = std::move(wider);
  }
  last_window >>= by;
  shift = wanted;
}

InspectorProcess ReadNcclInspector(ByteSource& source) {
  InspectorProcess process;
  auto stream = std::make_unique<JsonStream>(source);
  RecordHandler handler(*stream, process);
  while (process.note.empty() && stream->Peek() != JsonStream::kEnd) process.note = ReadJson(source, *stream, handler);
  if (process.note.empty()) process.note = source.damage();
  if (handler.has_several()) process.note = "it has records of several processes, of which the first one was read";
  return process;
}

namespace {

// Facts about a communicator from all processes.
struct Shared {
  int size = 0;
  std::array<int, 2> shift{};
  uint64_t windows = 0;                                       // of its collectives
  std::map<int, size_t> by_rank;                              // index of the process
  std::vector<int> members;                                   // empty: not all are known
  std::map<std::pair<Channel, uint32_t>, uint64_t> least_ns;  // of its collectives, by window
};

class JobFolder {
 public:
  explicit JobFolder(std::vector<InspectorProcess*> processes) : processes_(std::move(processes)) {}

  InspectorJob Fold() {
    Share();
    NumberRanks();
    FindTimes();
    for (size_t i = 0; i < processes_.size(); ++i) job_.ranks[i].folded = FoldProcess(*processes_[i]);
    return std::move(job_);
  }

 private:
  void Share() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      for (const auto& [id, communicator] : processes_[i]->communicators) {
        Shared& shared = shared_[id];
        shared.size = std::max(shared.size, communicator.size);
        shared.by_rank.emplace(communicator.rank, i);
        for (size_t kind = 0; kind < 2; ++kind) {
          shared.shift[kind] = std::max(shared.shift[kind], communicator.sequences[kind].shift);
        }
      }
    }
    for (InspectorProcess* process : processes_) {
      for (auto& [id, communicator] : process->communicators) {
        Shared& shared = shared_[id];
        for (size_t kind = 0; kind < 2; ++kind) communicator.sequences[kind].Widen(shared.shift[kind]);
        shared.windows = std::max(shared.windows, communicator.sequences[0].last_window + 1);
        steps_ = std::max(steps_, communicator.sequences[1].last_window + 1);
        for (const auto& [channel, windows] : communicator.sequences[0].channels) {
          for (const auto& [window, sums] : windows) {
            uint64_t& least = shared.least_ns.try_emplace({channel, window}, UINT64_MAX).first->second;
            least = std::min(least, sums.min_ns);
          }
        }
      }
    }
    // Chosen so that each communicator has an operation in every step, if possible.
    uint64_t least = UINT64_MAX;
    for (const auto& [id, shared] : shared_) {
      steps_ = std::max(steps_, shared.windows);
      if (shared.windows >= kEnoughSteps) least = std::min(least, shared.windows);
    }
    if (least != UINT64_MAX) steps_ = least;
    // Each process has a summary of each step, so the size of the files limits their total number.
    uint64_t folds = kFreeFolds;
    for (const InspectorProcess* process : processes_) folds += process->records;
    steps_ = std::clamp<uint64_t>(folds / std::max<size_t>(1, processes_.size()), 1, steps_);
  }

  void NumberRanks() {
    job_.ranks.resize(processes_.size());
    const auto world = std::find_if(shared_.begin(), shared_.end(), [this](const auto& shared) {
      return shared.second.by_rank.size() == processes_.size() && IsLargest(shared.second.size);
    });
    if (world != shared_.end()) {
      job_.world_size = world->second.size;
      for (const auto& [rank, process] : world->second.by_rank) job_.ranks[process].rank = rank;
    } else {
      std::vector<size_t> order(processes_.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
        return std::tie(processes_[a]->host, processes_[a]->pid) < std::tie(processes_[b]->host, processes_[b]->pid);
      });
      for (size_t i = 0; i < order.size(); ++i) job_.ranks[order[i]].rank = static_cast<int>(i);
    }
    for (auto it = shared_.begin(); it != shared_.end(); ++it) {
      Shared& shared = it->second;
      if (it == world) {
        shared.members.resize(static_cast<size_t>(shared.size));
        std::iota(shared.members.begin(), shared.members.end(), 0);
      } else if (shared.by_rank.size() == static_cast<size_t>(shared.size)) {
        for (const auto& [rank, process] : shared.by_rank) shared.members.push_back(job_.ranks[process].rank);
      }
    }
  }

  bool IsLargest(int size) const {
    return std::all_of(shared_.begin(), shared_.end(), [size](const auto& other) { return other.second.size <= size; });
  }

  uint64_t StepOf(uint64_t window, uint64_t windows) const { return window * steps_ / windows; }

  // A step lasts as long as the transfers of the rank with the longest ones; the files do not show other work, or
  // times.
  void FindTimes() {
    std::vector<uint64_t> lengths(steps_, kShortestNs);
    uint64_t last_us = 0;
    for (const InspectorProcess* process : processes_) {
      last_us = std::max(last_us, process->last_us);
      std::vector<uint64_t> own(steps_);
      for (const auto& [id, communicator] : process->communicators) {
        const Shared& shared = shared_.at(id);
        for (const auto& [channel, windows] : communicator.sequences[0].channels) {
          for (const auto& [window, sums] : windows) {
            own[StepOf(window, shared.windows)] += sums.count * shared.least_ns.at({channel, window});
          }
        }
        for (const auto& [channel, windows] : communicator.sequences[1].channels) {
          for (const auto& [window, sums] : windows) {
            own[StepOf(window, communicator.sequences[1].last_window + 1)] += sums.count * sums.min_ns;
          }
        }
      }
      for (uint64_t step = 0; step < steps_; ++step) lengths[step] = std::max(lengths[step], own[step]);
    }
    uint64_t all_ns = 0;
    for (uint64_t& length : lengths) all_ns += length = std::min(length, kLongestNs);
    ends_ns_.push_back(std::max(last_us * 1000, all_ns + kBeginNs) - all_ns);
    for (uint64_t length : lengths) ends_ns_.push_back(ends_ns_.back() + length);
  }

  FoldedTrace FoldProcess(const InspectorProcess& process) {
    FoldedTrace folded;
    folded.steps = StepSource::kNumbered;
    folded.has_ops = true;
    for (uint64_t step = 0; step < steps_; ++step) {
      StepFold& fold = folded.folds.emplace_back();
      fold.step = static_cast<int64_t>(step);
      fold.process_id = 1;
      fold.start_ns = ends_ns_[step];
      fold.end_ns = ends_ns_[step + 1];
      fold.previous_end_ns = step == 0 ? 0 : fold.start_ns;
      fold.host_only = false;
    }
    for (const auto& [id, communicator] : process.communicators) {
      const auto group = static_cast<uint32_t>(folded.groups.size());
      const Shared& shared = shared_.at(id);
      if (shared.members.empty()) continue;  // the last member to arrive may be a missing one
      std::vector<MemberRun> members = CompressMembers(shared.members);
      if (members.size() > ranges_left_) continue;
      ranges_left_ -= members.size();
      folded.groups.push_back({.name = id, .label = "", .members = std::move(members)});
      // Pairs have their own numbers; equal fractions of all numbers are at about the same time.
      AddSequence(communicator.sequences[0], shared.windows, group, folded);
      AddSequence(communicator.sequences[1], communicator.sequences[1].last_window + 1, group, folded);
    }
    for (StepFold& fold : folded.folds) {
      if (fold.ops.size() <= StepFold::kMaxOps) continue;
      std::stable_sort(fold.ops.begin(), fold.ops.end(),
                       [](const OpFold& a, const OpFold& b) { return a.bytes > b.bytes; });
      fold.ops.resize(StepFold::kMaxOps);
    }
    return folded;
  }

  void AddSequence(const InspectorSequence& sequence, uint64_t windows, uint32_t group, FoldedTrace& folded) const {
    for (const auto& [channel, by_window] : sequence.channels) {
      for (const auto& [window, sums] : by_window) {
        StepFold& fold = folded.folds[StepOf(window, windows)];
        fold.covered_ns = std::min(fold.end_ns - fold.start_ns, fold.covered_ns + sums.duration_ns);
        if (!fold.ops.empty() && IsOf(fold.ops.back(), group, channel)) {
          OpFold& op = fold.ops.back();
          op.count += sums.count;
          op.bytes += sums.bytes;
          op.duration_ns += sums.duration_ns;
          op.min_duration_ns = std::min(op.min_duration_ns, sums.min_ns);
          continue;
        }
        fold.ops.push_back({.group = group,
                            .op = channel.op,
                            .size_log2 = channel.size_log2,
                            .peer = channel.peer,
                            .count = sums.count,
                            .bytes = sums.bytes,
                            .duration_ns = sums.duration_ns,
                            .min_duration_ns = sums.min_ns,
                            .first_start_ns = fold.start_ns,
                            .last_end_ns = fold.end_ns});
      }
    }
  }

  static bool IsOf(const OpFold& op, uint32_t group, const Channel& channel) {
    return op.group == group && op.op == channel.op && op.peer == channel.peer && op.size_log2 == channel.size_log2;
  }

  static constexpr uint64_t kBeginNs = 1'000'000'000;
  static constexpr uint64_t kShortestNs = 1000, kLongestNs = uint64_t{1} << 52;
  static constexpr uint64_t kEnoughSteps = 64;
  static constexpr size_t kMaxRanges = size_t{1} << 22;      // of members, sum over all processes
  static constexpr uint64_t kFreeFolds = uint64_t{1} << 18;  // of some hundred bytes each

  const std::vector<InspectorProcess*> processes_;
  std::map<std::string, Shared> shared_;
  uint64_t steps_ = 1;
  size_t ranges_left_ = kMaxRanges;
  std::vector<uint64_t> ends_ns_;  // ends of the steps, after the begin of the first one
  InspectorJob job_;
};

}  // namespace

bool AreOfOneProcess(const InspectorProcess& a, const InspectorProcess& b) {
  if (a.pid != b.pid || a.host != b.host) return false;
  return std::any_of(a.communicators.begin(), a.communicators.end(), [&b](const auto& entry) {
    const auto same = b.communicators.find(entry.first);
    return same != b.communicators.end() && same->second.rank == entry.second.rank;
  });
}

InspectorJob FoldInspector(std::vector<InspectorProcess*> processes) { return JobFolder(std::move(processes)).Fold(); }

}  // namespace taskd::readers
