#include "manager/nodes/node_input.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "manager/switch/core.h"
#include "proto/built_size.h"
#include "proto/fold_messages.h"
#include "proto/node_messages.h"
#include "proto/wire_reader.h"

namespace taskd::manager {
namespace {

using proto::WireReader;

// Of one message. A proxy sends every second or more often; 4,096 ranks at 10 steps a second are far below.
constexpr size_t kMaxFolds = 65536;

template <typename Message>
absl::Status Parse(std::string_view wire, size_t max_bytes, Message* message) {
  google::protobuf::io::ArrayInputStream counted(wire.data(), static_cast<int>(wire.size()));
  absl::Status sound = proto::CheckBuiltSize(*Message::descriptor(), &counted, max_bytes);
  if (!sound.ok() || message->ParseFromArray(wire.data(), static_cast<int>(wire.size()))) return sound;
  return absl::InvalidArgumentError("the message cannot be parsed");
}

class FoldSetReader {
 public:
  explicit FoldSetReader(FoldBatch* batch) : batch_(*batch) {}

  absl::Status Read(std::string_view wire) {
    absl::Status status = MakeRoom(wire);
    for (WireReader set(wire); status.ok() && set.Next();) {
      if (set.Is(v1::FoldSet::kStepsFieldNumber, WireReader::Type::kBytes)) {
        status = TakeStep(set.bytes());
      } else if (set.Is(v1::FoldSet::kGroupsFieldNumber, WireReader::Type::kBytes)) {
        status = TakeGroups(set.bytes());
      } else if (set.Is(v1::FoldSet::kDroppedFieldNumber, WireReader::Type::kVarint)) {
        batch_.proxy_dropped = set.number();
      }
    }
    return status;
  }

 private:
  // Before any is built: two bytes can be a step of hundreds.
  absl::Status MakeRoom(std::string_view wire) {
    WireReader set(wire);
    size_t steps = 0, groups = 0;
    while (set.Next()) {
      if (set.Is(v1::FoldSet::kStepsFieldNumber, WireReader::Type::kBytes)) ++steps;
      if (set.Is(v1::FoldSet::kGroupsFieldNumber, WireReader::Type::kBytes)) ++groups;
    }
    if (set.broken()) return absl::InvalidArgumentError("no sound taskd.v1.FoldSet");
    if (absl::Status room = Charge(steps * sizeof(FoldBatch::Step) + groups * sizeof(v1::RankGroups)); !room.ok())
      return room;
    batch_.steps.reserve(std::min(steps, kMaxFolds));
    return absl::OkStatus();
  }

  absl::Status Charge(size_t bytes) {
    if (bytes > left_) {
      return absl::ResourceExhaustedError(absl::StrCat("taskd.v1.FoldSet: its parts would take more than ",
                                                       proto::kMaxBuiltBytes >> 20, " MiB of memory"));
    }
    left_ -= bytes;
    return absl::OkStatus();
  }

  absl::Status TakeStep(std::string_view wire) {
    if (batch_.steps.size() >= kMaxFolds) {
      ++batch_.unreadable;
      return absl::OkStatus();
    }
    absl::StatusOr<proto::RankFold> read = proto::ReadFold(wire);
    if (absl::IsDataLoss(read.status())) return absl::InvalidArgumentError(read.status().message());
    if (!read.ok()) {
      ++batch_.unreadable;
      return absl::OkStatus();
    }
    const FoldBatch::Step& step =
        batch_.steps.emplace_back(FoldBatch::Step{read->rank, std::move(read->fold), read->number});
    return Charge(step.fold.ops.size() * sizeof(OpFold) + step.fold.samples.size() * sizeof(OpSample));
  }

  absl::Status TakeGroups(std::string_view wire) {
    if (batch_.groups.size() >= kMaxRanksPerNode) return absl::OkStatus();
    v1::RankGroups in;
    if (absl::Status sound = Parse(wire, left_, &in); !sound.ok()) return sound;
    FoldBatch::Groups& rank = batch_.groups.emplace_back();
    rank.rank = in.rank();
    size_t bytes = sizeof rank;
    for (const v1::Group& group : in.groups()) {
      if (rank.groups.size() >= DiagnosisFeed::kMaxGroups) {
        batch_.bad_groups += static_cast<uint64_t>(in.groups_size()) - DiagnosisFeed::kMaxGroups;
        break;
      }
      const GroupInfo& taken = rank.groups.emplace_back(ReadGroup(group));
      bytes += sizeof taken + taken.name.size() + taken.label.size() + taken.members.size() * sizeof(MemberRun);
    }
    return Charge(bytes);
  }

  GroupInfo ReadGroup(const v1::Group& group) {
    absl::StatusOr<GroupInfo> read = proto::ReadGroup(group);
    if (!read.ok()) {
      ++batch_.bad_groups;
      // Its members cannot be used, but its name may be, and it keeps its place: the others go by their index.
      v1::Group named;
      named.set_name(group.name());
      named.set_label(group.label());
      read = proto::ReadGroup(named);
    }
    return read.ok() ? *std::move(read) : GroupInfo{};
  }

  FoldBatch& batch_;
  size_t left_ = proto::kMaxBuiltBytes;
};

absl::StatusOr<std::vector<RankReport>> ReadRanks(std::string_view wire) {
  std::vector<RankReport> ranks;
  size_t fields = 0;
  for (WireReader counted(wire); counted.Next();) ++fields;
  ranks.reserve(std::min<size_t>(fields, kMaxRanksPerNode));
  WireReader set(wire);
  while (set.Next()) {
    if (!set.Is(v1::RankSet::kRanksFieldNumber, WireReader::Type::kBytes)) continue;
    if (ranks.size() >= kMaxRanksPerNode) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxRanksPerNode, " ranks"));
    }
    absl::StatusOr<RankReport> rank = proto::ReadRankReport(set.bytes());
    if (!rank.ok()) return rank.status();
    ranks.push_back(*std::move(rank));
  }
  if (set.broken()) return absl::InvalidArgumentError("no sound taskd.v1.RankSet");
  return ranks;
}

// Of a message that is one set of folds or of ranks, and nothing else; else the field is 0.
struct OnlySet {
  uint32_t field = 0;
  std::string_view wire;
};
OnlySet OnlySetOf(std::string_view wire) {
  WireReader message(wire);
  if (!message.Next() || message.type() != WireReader::Type::kBytes) return {};
  const OnlySet set = {message.field(), message.bytes()};
  const bool is_one =
      set.field == v1::NodeMessage::kFoldsFieldNumber || set.field == v1::NodeMessage::kRanksFieldNumber;
  return !is_one || message.Next() || message.broken() ? OnlySet() : set;
}

// Of one that others go before, or that comes in pieces.
OnlySet LastSetOf(const v1::NodeMessage& message, std::string& merged) {
  if (message.has_folds()) return {v1::NodeMessage::kFoldsFieldNumber, merged = message.folds().SerializeAsString()};
  if (message.has_ranks()) return {v1::NodeMessage::kRanksFieldNumber, merged = message.ranks().SerializeAsString()};
  return {};
}

}  // namespace

void ReadNodeInput(std::string_view wire, NodeInput* input) {
  input->Clear();
  OnlySet set = OnlySetOf(wire);
  std::string merged;
  if (set.field == 0) {
    input->refusal = Parse(wire, proto::kMaxBuiltBytes, &input->message);
    if (input->refusal.ok()) set = LastSetOf(input->message, merged);
    if (!input->refusal.ok() || set.field != 0) input->message.Clear();
  }
  if (set.field == v1::NodeMessage::kFoldsFieldNumber) {
    input->refusal = FoldSetReader(&input->folds.emplace()).Read(set.wire);
    if (!input->refusal.ok()) input->folds.reset();
  } else if (set.field == v1::NodeMessage::kRanksFieldNumber) {
    absl::StatusOr<std::vector<RankReport>> ranks = ReadRanks(set.wire);
    input->refusal = ranks.status();
    if (ranks.ok()) input->ranks = *std::move(ranks);
  }
}

}  // namespace taskd::manager
