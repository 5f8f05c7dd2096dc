#include "readers/kineto_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "marks/comm_name.h"
#include "readers/json_stream.h"
#include "readers/number_text.h"
#include "readers/rank_list.h"

namespace taskd::readers {
namespace {

constexpr size_t kMaxKernelNames = 4096;
constexpr size_t kMaxTraceSteps = size_t{1} << 17;  // each becomes a step summary of some hundred bytes
constexpr absl::string_view kOtherKernels = "others";

using Kind = TraceEvent::Kind;

uint64_t SizeOfType(std::string_view type) {
  struct Entry {
    std::string_view name;
    uint64_t bytes;
  };
  // c10's names of types.
  constexpr std::array<Entry, 14> kTypes = {{{"Float", 4},
                                             {"Half", 2},
                                             {"BFloat16", 2},
                                             {"Double", 8},
                                             {"Byte", 1},
                                             {"Char", 1},
                                             {"Short", 2},
                                             {"Int", 4},
                                             {"Long", 8},
                                             {"Bool", 1},
                                             {"Float8_e4m3fn", 1},
                                             {"Float8_e5m2", 1},
                                             {"ComplexFloat", 8},
                                             {"ComplexDouble", 16}}};
  for (const Entry& entry : kTypes) {
    if (entry.name == type) return entry.bytes;
  }
  return 0;
}

// The N of "step 7", "iteration_7", "train_step#7", "ProfilerStep#7".
std::optional<int64_t> StepOfName(std::string_view name) {
  const size_t end = name.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == name.size()) return std::nullopt;
  const int64_t step = ReadNumber<int64_t>(name.substr(end + 1), -1);
  if (step < 0 || step > StepFold::kMaxStep) return std::nullopt;
  std::string_view word = name.substr(0, end + 1);
  const size_t letters = word.find_last_not_of(" #_:=");
  if (letters == std::string_view::npos || letters + 1 == word.size()) return std::nullopt;
  word = word.substr(0, letters + 1);
  for (std::string_view known : {"ProfilerStep", "step", "iteration", "iter", "train_step", "training_step",
                                 "train step", "training step", "global_step", "train_iteration", "batch"}) {
    if (absl::EqualsIgnoreCase(absl::string_view(word.data(), word.size()), known.data())) return step;
  }
  return std::nullopt;
}

// Steps without a number, from Lightning and others.
bool IsUncountedStep(std::string_view name) {
  return name.ends_with("run_training_batch") || name == "train_step" || name == "training_step";
}

bool IsForward(std::string_view name) {
  return name == "DistributedDataParallel.forward" || name == "FullyShardedDataParallel.forward" || name == "forward" ||
         name == "## forward ##";
}

bool IsCheckpoint(std::string_view name) {
  return name.find("save_checkpoint") != std::string_view::npos ||
         name.find("checkpoint_save") != std::string_view::npos;
}

class EventHandler : public JsonHandler<EventHandler> {
 public:
  EventHandler(JsonStream& stream, size_t max_events, TraceRank& trace)
      : JsonHandler(stream), max_events_(max_events), trace_(trace) {}

  bool Name(std::string_view name) {
    key_ = Field::kNone;
    if (depth() == event_depth_) {
      key_ = EventKey(name);
    } else if (in_args_ && depth() == event_depth_ + 1) {
      key_ = ArgsKey(name);
    } else if (root_is_object_ && depth() == 1) {
      key_ = RootKey(name);
    } else if (in_info_) {
      key_ = InfoKey(name);
    }
    return true;
  }

  bool Text(std::string_view text) {
    Value(text);
    return true;
  }
  bool Number(std::string_view text) {
    if (key_ == Field::kRanks && in_info_ && group_ranks_.size() < diagnosis::kMaxRanks) {
      group_ranks_.push_back(ReadNumber(text, -1));  // an array's key stays valid until the next key
      return true;
    }
    Value(text);
    return true;
  }

  bool Begin(bool is_array) {
    if (depth() == 1) {
      root_is_object_ = !is_array;
      if (is_array) events_depth_ = 1;
    } else if (depth() == 2 && is_array && key_ == Field::kTraceEvents) {
      events_depth_ = 2;
    } else if (depth() == 2 && !is_array && key_ == Field::kInfo) {
      in_info_ = true;
    } else if (!is_array && events_depth_ != 0 && depth() == events_depth_ + 1) {
      event_depth_ = depth();
      event_.Clear();
    } else if (!is_array && depth() == event_depth_ + 1 && event_depth_ != 0 && key_ == Field::kArgs) {
      in_args_ = true;
    } else if (in_info_ && !is_array) {
      group_name_.clear();
      group_label_.clear();
      group_ranks_.clear();
    }
    if (key_ != Field::kRanks) key_ = Field::kNone;
    return true;
  }

  bool End(bool is_array) {
    // `depth` is the depth of the enclosing value.
    if (in_args_ && depth() == event_depth_) {
      in_args_ = false;
    } else if (event_depth_ != 0 && depth() + 1 == event_depth_) {
      ++trace_.records;
      AddEvent();
      event_depth_ = 0;
    } else if (events_depth_ != 0 && depth() + 1 == events_depth_) {
      events_depth_ = 0;
    } else if (in_info_ && depth() == 1) {
      in_info_ = false;
    } else if (in_info_ && !is_array) {
      if (!group_name_.empty()) Group(group_name_, group_label_, group_ranks_);
    }
    if (!is_array) key_ = Field::kNone;
    return true;
  }

  // Called after the last event.
  void Finish() {
    for (TraceEvent& event : trace_.events) {
      event.start_ns += base_ns_;
      event.end_ns += base_ns_;
    }
    for (KernelRun& kernel : trace_.kernels) kernel.start_ns += base_ns_;
    for (uint64_t& start_ns : trace_.backward_ns) start_ns += base_ns_;
    if (left_out_ > 0) {
      AddNote(absl::StrCat("of its steps and operations ", left_out_, " were left out: it has too many"));
    }
    if (too_many_kernels_) {
      AddNote(absl::StrCat("it has more than ", max_events_, " kernels: what the device computed is left out"));
    }
    if (too_many_backwards_) {
      AddNote(
          absl::StrCat("it has more than ", max_events_, " computations of gradients: forward passes are left out"));
    }
  }

 private:
  enum class Field : uint8_t {
    kNone,
    kTraceEvents,
    kInfo,
    kBase,
    kHost,  // of the file
    kRank,
    kWorldSize,
    kPgName,
    kPgDesc,
    kRanks,  // in distributedInfo
    kPhase,
    kProcess,
    kCategory,
    kEventName,
    kStamp,
    kDuration,
    kArgs,  // of an event
    kCollective,
    kInCount,
    kOutCount,
    kType,
    kGroup,
    kGroupDesc,
    kGroupRanks,
    kSource,
    kDestination,
    kCallId,  // in an event's args
  };

  struct Event {
    std::string name;
    std::string process;
    std::string category;
    std::optional<Stamp> start;
    std::string duration;
    std::string collective;
    std::string type;
    std::string group, label, ranks;
    uint64_t in_count = 0, out_count = 0, call_id = 0;
    int source = -1, destination = -1;
    bool is_complete = false;  // "X": with begin and duration

    void Clear() {  // keeps the memory
      for (std::string* text : {&name, &process, &category, &duration, &collective, &type, &group, &label, &ranks})
        text->clear();
      start.reset();
      in_count = out_count = call_id = 0;
      source = destination = -1;
      is_complete = false;
    }
  };

  static Field RootKey(std::string_view name) {
    if (name == "traceEvents") return Field::kTraceEvents;
    if (name == "distributedInfo") return Field::kInfo;
    if (name == "baseTimeNanoseconds") return Field::kBase;
    if (name == "host_name") return Field::kHost;
    return Field::kNone;
  }
  static Field InfoKey(std::string_view name) {
    if (name == "rank") return Field::kRank;
    if (name == "world_size") return Field::kWorldSize;
    if (name == "pg_name") return Field::kPgName;
    if (name == "pg_desc") return Field::kPgDesc;
    if (name == "ranks") return Field::kRanks;
    return Field::kNone;
  }
  static Field EventKey(std::string_view name) {
    if (name == "ph") return Field::kPhase;
    if (name == "pid") return Field::kProcess;
    if (name == "cat") return Field::kCategory;
    if (name == "name") return Field::kEventName;
    if (name == "ts") return Field::kStamp;
    if (name == "dur") return Field::kDuration;
    if (name == "args") return Field::kArgs;
    return Field::kNone;
  }
  static Field ArgsKey(std::string_view name) {
    if (name.size() < 5) return Field::kNone;
    if (name == "dtype") return Field::kType;
    if (name == "Collective name") return Field::kCollective;
    if (name == "In msg nelems") return Field::kInCount;
    if (name == "Out msg nelems") return Field::kOutCount;
    if (name == "Process Group Name") return Field::kGroup;
    if (name == "Process Group Description") return Field::kGroupDesc;
    if (name == "Process Group Ranks") return Field::kGroupRanks;
    if (name == "Src Rank") return Field::kSource;
    if (name == "Dst Rank") return Field::kDestination;
    if (name == "External id") return Field::kCallId;
    return Field::kNone;
  }

  void Value(std::string_view text) {
    switch (key_) {
      case Field::kNone:
      case Field::kTraceEvents:
      case Field::kInfo:
      case Field::kArgs:
        return;
      case Field::kBase:
        base_ns_ = ReadNumber<uint64_t>(text, 0);
        if (base_ns_ > UINT64_MAX / 4) base_ns_ = 0;
        break;
      case Field::kHost:
        trace_.host = CutUtf8(ValidUtf8(std::string(text)), kMaxNameBytes);
        break;
      case Field::kRank:
        if (depth() == 2) trace_.rank = std::max(-1, ReadNumber(text, -1));
        break;
      case Field::kWorldSize:
        trace_.world_size = ReadNumber(text, 0);
        break;
      case Field::kPgName:
        group_name_ = text;
        break;
      case Field::kPgDesc:
        group_label_ = text;
        break;
      case Field::kRanks:
        group_ranks_ = ReadRankList(text);
        break;
      case Field::kPhase:
        event_.is_complete = text == "X";
        break;
      case Field::kProcess:
        event_.process = text;
        break;
      case Field::kCategory:
        event_.category = text;
        break;
      case Field::kEventName:
        event_.name = text;
        break;
      case Field::kStamp:
        event_.start = ReadStamp(text);
        break;
      case Field::kDuration:
        event_.duration = text;
        break;
      case Field::kCollective:
        event_.collective = text;
        break;
      case Field::kInCount:
        event_.in_count = ReadNumber<uint64_t>(text, 0);
        break;
      case Field::kOutCount:
        event_.out_count = ReadNumber<uint64_t>(text, 0);
        break;
      case Field::kType:
        event_.type = text;
        break;
      case Field::kGroup:
        event_.group = text;
        break;
      case Field::kGroupDesc:
        event_.label = text;
        break;
      case Field::kGroupRanks:
        event_.ranks = text;
        break;
      case Field::kSource:
        event_.source = ReadNumber(text, -1);
        break;
      case Field::kDestination:
        event_.destination = ReadNumber(text, -1);
        break;
      case Field::kCallId:
        event_.call_id = ReadNumber<uint64_t>(text, 0);
        break;
    }
    key_ = Field::kNone;
  }

  // The index of a group; adds it, or what is now known about it.
  uint32_t Group(std::string_view name, std::string_view label, const std::vector<int>& ranks) {
    const std::string known = CutUtf8(ValidUtf8(std::string(name)), kMaxNameBytes);
    auto [found, is_new] = group_index_.try_emplace(known, static_cast<uint32_t>(trace_.groups.size()));
    if (is_new && trace_.groups.size() >= kMaxGroups) {
      group_index_.erase(found);
      return 0;
    }
    if (is_new) trace_.groups.push_back({.name = known, .label = "", .members = {}});
    GroupInfo& group = trace_.groups[found->second];
    if (group.label.empty() && label != "default_pg" && label != "undefined") {
      if (label.starts_with("mesh_")) label.remove_prefix(5);
      group.label = CutUtf8(ValidUtf8(std::string(label)), kMaxNameBytes);
    }
    const bool are_ranks = std::all_of(ranks.begin(), ranks.end(), [](int rank) { return rank >= 0; });
    if (group.members.empty() && are_ranks && members_ + ranks.size() <= kMaxMembers) {
      group.members = CompressMembers(ranks);
      members_ += ranks.size();
    }
    return found->second;
  }

  bool IsKernel() const {
    const std::string_view name = event_.name;
    const std::string_view category = event_.category;
    if (category == "gpu_memcpy" || category == "gpu_memset") return true;
    return category == "kernel" && !name.starts_with("nccl") && !name.starts_with("rccl") && event_.collective.empty();
  }

  // Adds a kernel. Most names are known already; only new ones are copied.
  void AddKernel() {
    const std::optional<Stamp> duration = ReadStamp(event_.duration);
    if (!duration || event_.start->ns > UINT64_MAX / 4 || too_many_kernels_) return;
    if (trace_.kernels.size() >= max_events_) {
      too_many_kernels_ = true;
      trace_.kernels = {};
      return;
    }
    const absl::string_view kernel = absl::string_view(event_.name).substr(0, kMaxNameBytes);
    auto known = kernel_index_.find(kernel);
    if (known == kernel_index_.end()) {
      const bool is_kept = trace_.kernel_names.size() < kMaxKernelNames;
      const std::string name(is_kept ? kernel : kOtherKernels);
      known = kernel_index_.try_emplace(name, static_cast<uint32_t>(trace_.kernel_names.size())).first;
      if (known->second == trace_.kernel_names.size()) trace_.kernel_names.push_back(ValidUtf8(name));
    }
    const uint64_t length_ns = event_.start->is_ns && !duration->is_ns ? duration->ns / 1000 : duration->ns;
    trace_.kernels.push_back({.start_ns = event_.start->ns,
                              .length_ns = static_cast<uint32_t>(std::min<uint64_t>(length_ns, UINT32_MAX)),
                              .name = known->second});
  }

  bool IsBackward() const { return event_.name.starts_with("autograd::engine::evaluate_function"); }

  void AddBackward() {
    if (event_.start->ns > UINT64_MAX / 4 || too_many_backwards_) return;
    if (trace_.backward_ns.size() >= max_events_) {
      too_many_backwards_ = true;
      trace_.backward_ns = {};
      return;
    }
    trace_.backward_ns.push_back(event_.start->ns);
  }

  void AddNote(const std::string& note) { absl::StrAppend(&trace_.note, trace_.note.empty() ? "" : "; ", note); }

  std::optional<Kind> KindOf(TraceEvent& event) const {
    const std::string_view name = event_.name;
    const std::string_view category = event_.category;
    if (ReadHcomName(name) || category == "kernel") return Kind::kDeviceOp;
    if (category == "cuda_runtime") return std::nullopt;
    if (name == "record_param_comms") return Kind::kCall;
    if (name.starts_with("gloo:") || name.starts_with("mpi:")) return Kind::kWork;
    const bool on_device = category == "gpu_user_annotation";
    if (name.starts_with("aten::") || name.starts_with("nccl:")) return std::nullopt;
    if (std::optional<int64_t> step = StepOfName(name)) {
      event.step = *step;
      return on_device ? Kind::kDeviceStep : Kind::kStep;
    }
    if (on_device) return std::nullopt;
    if (name.starts_with("enumerate(DataLoader)")) return Kind::kDataLoader;
    if (name.starts_with("Optimizer.step#")) return Kind::kBoundary;
    if (IsForward(name)) return Kind::kForward;
    if (IsUncountedStep(name)) return Kind::kUncountedStep;
    if (IsCheckpoint(name)) return Kind::kCheckpoint;
    return std::nullopt;
  }

  // A rank is one process on one host.
  void NoteProcess() {
    if (process_.empty()) process_ = event_.process;
    if (!event_.process.empty() && event_.process != process_) trace_.has_several_ranks = true;
  }

  void AddEvent() {
    if (!event_.is_complete || !event_.start) return;
    if (IsKernel()) return AddKernel();
    if (IsBackward()) return AddBackward();
    TraceEvent event;
    const std::optional<Kind> kind = KindOf(event);
    if (!kind) return;
    const std::optional<Stamp> duration = ReadStamp(event_.duration);
    if (!duration || event_.start->ns > UINT64_MAX / 4 || duration->ns > UINT64_MAX / 4) return;
    event.kind = *kind;
    if (event_.category == "user_annotation") NoteProcess();
    event.start_ns = event_.start->ns;
    event.end_ns = event.start_ns + (event_.start->is_ns && !duration->is_ns ? duration->ns / 1000 : duration->ns);
    if (*kind == Kind::kDeviceOp || *kind == Kind::kWork || *kind == Kind::kCall) {
      event.op = OpOfName(event_.collective.empty() ? event_.name : event_.collective);
      // Excluded are waits for a counted operation, and calls that only begin or end others.
      if (event.op == CommOp::kOther && *kind != Kind::kDeviceOp) return;
      const std::optional<HcomName> hcom = ReadHcomName(event_.name);
      event.group = Group(hcom ? hcom->group : event_.group, event_.label, ReadRankList(event_.ranks));
      event.bytes = std::max(event_.in_count, event_.out_count);
      event.call_id = event_.call_id;
      if (__builtin_mul_overflow(event.bytes, SizeOfType(event_.type), &event.bytes)) event.bytes = 0;
      if (event.op == CommOp::kSend) event.peer = event_.destination;
      if (event.op == CommOp::kRecv) event.peer = event_.source;
    }
    const bool is_step =
        *kind == Kind::kStep || *kind == Kind::kDeviceStep || *kind == Kind::kUncountedStep || *kind == Kind::kBoundary;
    if (trace_.events.size() >= max_events_ || (is_step && steps_++ >= kMaxTraceSteps)) {
      ++left_out_;
      return;
    }
    trace_.events.push_back(event);
  }

  const size_t max_events_;
  size_t steps_ = 0;
  TraceRank& trace_;
  Field key_ = Field::kNone;
  bool root_is_object_ = false;
  bool in_args_ = false;
  bool in_info_ = false;
  size_t events_depth_ = 0;  // depth of the array of events; 0: not in it
  size_t event_depth_ = 0;   // depth of an event; 0: not in one
  Event event_;
  uint64_t base_ns_ = 0;
  uint64_t left_out_ = 0;
  std::string process_;  // process of the first annotation
  bool too_many_kernels_ = false, too_many_backwards_ = false;
  absl::flat_hash_map<std::string, uint32_t> kernel_index_;
  std::string group_name_, group_label_;  // in distributedInfo
  std::vector<int> group_ranks_;
  size_t members_ = 0;
  std::map<std::string, uint32_t> group_index_;
};

}  // namespace

CommOp OpOfName(std::string_view name) {
  // Examples: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_…", "gloo:all_reduce".
  if (const std::optional<HcomName> hcom = ReadHcomName(name)) name = hcom->op;
  if (const size_t kernel = name.find("Kernel_"); kernel != std::string_view::npos) name.remove_prefix(kernel + 7);
  if (const size_t colon = name.find(':'); colon != std::string_view::npos && colon < 8) name.remove_prefix(colon + 1);
  std::string text = R"({"groupName":"","opName":")";
  for (char c : name.substr(0, 64)) {
    if (absl::ascii_isalpha(static_cast<unsigned char>(c))) text += c;
  }
  text += "\"}";
  std::string storage;
  CommName read;
  return ParseCommName(text, storage, read) ? read.op : CommOp::kOther;
}

std::optional<HcomName> ReadHcomName(std::string_view name) {
  constexpr std::string_view kBegin = "hcom_";
  if (!name.starts_with(kBegin)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  const size_t end = name.find("__");
  if (end == std::string_view::npos) return std::nullopt;
  HcomName read{.op = name.substr(0, end), .group = name.substr(end + 2)};
  const size_t at = read.group.find('@');
  read.group = at == std::string_view::npos ? read.group.substr(0, read.group.find('_')) : read.group.substr(at + 1);
  return read;
}

TraceRank ReadKinetoTrace(ByteSource& source, size_t max_events) {
  TraceRank trace;
  auto stream = std::make_unique<JsonStream>(source);
  EventHandler handler(*stream, max_events, trace);
  trace.note = ReadJson(source, *stream, handler);
  handler.Finish();
  return trace;
}

}  // namespace taskd::readers
