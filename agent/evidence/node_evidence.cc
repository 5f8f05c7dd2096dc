#include "agent/evidence/node_evidence.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json_limits.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "nlohmann/json.hpp"
#include "readers/source_files.h"

namespace taskd::evidence {
namespace {

using diagnosis::Hang;
using diagnosis::HangCall;
using diagnosis::HangFacts;
using diagnosis::HangGroup;
using diagnosis::HangOp;
using diagnosis::HangRank;
using readers::Source;
using Json = nlohmann::ordered_json;

constexpr JsonLimits kLimits = {.bytes = size_t{8} << 20, .depth = 8, .values = size_t{1} << 20};
constexpr size_t kMaxGroups = 4096;
constexpr size_t kMaxMembers = size_t{1} << 20;  // of all groups
constexpr size_t kMaxTextBytes = 8192;
constexpr size_t kMaxFiles = 1024;  // of a node
constexpr size_t kOpFields = 8;
constexpr size_t kMaxNotes = 16;
constexpr size_t kNamedPaths = 2;

// ---- To JSON

// [first, last, first, last, …], in their order.
Json RunsOf(const std::vector<int>& members) {
  Json runs = Json::array();
  for (size_t i = 0; i < members.size();) {
    size_t end = i + 1;
    while (end < members.size() && members[end] == members[end - 1] + 1) ++end;
    runs.push_back(members[i]);
    runs.push_back(members[end - 1]);
    i = end;
  }
  return runs;
}

Json FactsToJson(const HangFacts& facts, bool with_frames) {
  Json json;
  json["groups"] = Json::array();
  for (const HangGroup& group : facts.groups) json["groups"].push_back({group.name, RunsOf(group.members)});
  json["calls"] = Json::array();
  for (const HangCall& call : facts.calls) {
    json["calls"].push_back({call.name, call.type, call.amount, call.sizes, with_frames ? call.frames : ""});
  }
  json["ranks"] = Json::array();
  for (const auto& [rank, known] : facts.ranks) {
    Json ops = Json::array();
    for (const HangOp& op : known.ops) {
      ops.push_back({op.group, op.call, op.number, op.order, op.created_ns, op.peer, op.sends ? 1 : 0,
                     static_cast<int>(op.state)});
    }
    json["ranks"].push_back(
        {{"rank", rank}, {"cut", known.is_cut}, {"partial", known.is_partial}, {"ops", std::move(ops)}});
  }
  return json;
}

Json HangToJson(const Hang& hang) {
  return {{"origins", hang.origins},     {"kind", hang.kind},      {"group", hang.group},
          {"operation", hang.operation}, {"since", hang.since_ns}, {"waiting", RunsOf(hang.waiting)},
          {"frames", hang.frames},       {"text", hang.text}};
}

std::string Encode(const NodeEvidence& evidence, bool with_facts, bool with_frames) {
  Json json;
  json["first_rank"] = evidence.first_rank;
  json["facts"] = FactsToJson(with_facts ? evidence.facts : HangFacts(), with_frames);
  json["sources"] = Json::array();
  for (const Source& source : evidence.sources) {
    std::string note = source.note;
    if (!with_facts)
      absl::StrAppend(&note, note.empty() ? "" : "; ", "left out: the node's dumps are too much to send");
    json["sources"].push_back({source.path, Name(source.format), source.rank, source.records, std::move(note)});
  }
  if (evidence.ras) {
    Json& ras = json["ras"];
    ras["answered"] = evidence.ras->has_answered;
    ras["notes"] = evidence.ras->notes;
    if (evidence.ras->hang) ras["hang"] = HangToJson(*evidence.ras->hang);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- From JSON. What is not there or is something else is 0, "" or an empty list, and what is beyond a range makes the
// whole text one that is not read.

const Json& Member(const Json& json, const char* name) {
  static const Json nothing;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() ? *found : nothing;
}

const Json& Element(const Json& json, size_t index) {
  static const Json nothing;
  return json.is_array() && index < json.size() ? json[index] : nothing;
}

std::string TextOf(const Json& json) {
  return json.is_string() ? CutUtf8(json.get_ref<const std::string&>(), kMaxTextBytes) : "";
}

std::vector<std::string> TextsOf(const Json& json) {
  std::vector<std::string> texts;
  for (size_t i = 0; json.is_array() && i < std::min(json.size(), kMaxNotes); ++i) texts.push_back(TextOf(json[i]));
  return texts;
}

class Reader {
 public:
  absl::StatusOr<NodeEvidence> Read(const Json& json) {
    NodeEvidence evidence;
    evidence.first_rank = Rank(Member(json, "first_rank"));
    ReadFacts(Member(json, "facts"), evidence.facts);
    const Json& sources = Member(json, "sources");
    Check(sources.size() <= kMaxFiles);
    for (size_t i = 0; sources.is_array() && i < sources.size() && is_good_; ++i) {
      const Json& row = sources[i];
      evidence.sources.push_back({.path = TextOf(Element(row, 0)),
                                  .format = readers::FormatNamed(TextOf(Element(row, 1))),
                                  .rank = Number<int>(Element(row, 2), -1, diagnosis::kMaxRanks - 1),
                                  .records = Number<uint64_t>(Element(row, 3), 0, INT64_MAX),
                                  .note = TextOf(Element(row, 4))});
    }
    if (const Json& ras = Member(json, "ras"); ras.is_object()) {
      evidence.ras.emplace();
      evidence.ras->has_answered = Bool(Member(ras, "answered"));
      evidence.ras->notes = TextsOf(Member(ras, "notes"));
      if (const Json& hang = Member(ras, "hang"); hang.is_object()) evidence.ras->hang = ReadHang(hang);
    }
    if (!is_good_) return absl::InvalidArgumentError("evidence: a value is out of range");
    return evidence;
  }

 private:
  void Check(bool is_good) { is_good_ = is_good_ && is_good; }

  template <typename Int>
  Int Number(const Json& json, int64_t least, int64_t most) {
    int64_t number = 0;
    if (json.is_number_unsigned()) {
      number = static_cast<int64_t>(std::min<uint64_t>(json.get<uint64_t>(), INT64_MAX));
    } else if (json.is_number_integer()) {
      number = json.get<int64_t>();
    }
    Check(number >= least && number <= most);
    return is_good_ ? static_cast<Int>(number) : Int{0};
  }
  int Rank(const Json& json) { return Number<int>(json, 0, diagnosis::kMaxRanks - 1); }
  static bool Bool(const Json& json) { return json.is_boolean() && json.get<bool>(); }

  std::vector<int> Members(const Json& runs) {
    std::vector<int> members;
    for (size_t i = 0; i + 1 < runs.size() && runs.is_array() && is_good_; i += 2) {
      const int first = Rank(runs[i]);
      const int last = Rank(runs[i + 1]);
      Check(first <= last);
      members_ += is_good_ ? static_cast<size_t>(last - first) + 1 : 0;
      Check(members_ <= kMaxMembers);
      for (int rank = first; is_good_ && rank <= last; ++rank) members.push_back(rank);
    }
    return members;
  }

  void ReadFacts(const Json& json, HangFacts& facts) {
    const Json& groups = Member(json, "groups");
    Check(groups.size() <= kMaxGroups);
    for (size_t i = 0; groups.is_array() && i < groups.size() && is_good_; ++i) {
      facts.groups.push_back({.name = TextOf(Element(groups[i], 0)), .members = Members(Element(groups[i], 1))});
    }
    const Json& calls = Member(json, "calls");
    for (size_t i = 0; calls.is_array() && i < calls.size(); ++i) {
      const auto text = [&](size_t field) { return TextOf(Element(calls[i], field)); };
      facts.calls.push_back({.name = text(0), .type = text(1), .amount = text(2), .sizes = text(3), .frames = text(4)});
    }
    const Json& ranks = Member(json, "ranks");
    for (size_t i = 0; ranks.is_array() && i < ranks.size() && is_good_; ++i) {
      const auto [found, is_new] = facts.ranks.try_emplace(Rank(Member(ranks[i], "rank")));
      Check(is_new);
      HangRank& known = found->second;
      known.is_cut = Bool(Member(ranks[i], "cut"));
      known.is_partial = Bool(Member(ranks[i], "partial"));
      ReadOps(Member(ranks[i], "ops"), facts, known);
    }
  }

  void ReadOps(const Json& ops, const HangFacts& facts, HangRank& known) {
    uint64_t before = 0;
    for (size_t i = 0; ops.is_array() && i < ops.size() && is_good_; ++i) {
      const Json& fields = ops[i];
      Check(fields.is_array() && fields.size() == kOpFields);
      if (!is_good_) return;
      HangOp& op = known.ops.emplace_back();
      op.group = Number<uint32_t>(fields[0], 0, static_cast<int64_t>(facts.groups.size()) - 1);
      op.call = Number<uint32_t>(fields[1], 0, static_cast<int64_t>(facts.calls.size()) - 1);
      op.number = Number<uint64_t>(fields[2], 0, INT64_MAX);
      op.order = Number<uint64_t>(fields[3], static_cast<int64_t>(before), INT64_MAX);
      op.created_ns = Number<uint64_t>(fields[4], 0, INT64_MAX);
      op.peer = Number<int>(fields[5], -1, HangOp::kAnyPeer);
      op.sends = Number<int>(fields[6], 0, 1) == 1;
      op.state = Number<diagnosis::OpState>(fields[7], 0, static_cast<int>(diagnosis::OpState::kCompleted));
      before = op.order;
    }
  }

  Hang ReadHang(const Json& json) {
    Hang hang;
    const Json& origins = Member(json, "origins");
    for (size_t i = 0; origins.is_array() && i < origins.size() && is_good_; ++i) {
      hang.origins.push_back(Rank(origins[i]));
    }
    hang.kind = TextOf(Member(json, "kind"));
    hang.group = TextOf(Member(json, "group"));
    hang.operation = TextOf(Member(json, "operation"));
    hang.since_ns = Number<uint64_t>(Member(json, "since"), 0, INT64_MAX);
    hang.waiting = Members(Member(json, "waiting"));
    hang.frames = TextOf(Member(json, "frames"));
    hang.text = TextOf(Member(json, "text"));
    return hang;
  }

  bool is_good_ = true;
  size_t members_ = 0;
};

std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanges(ranks));
}

}  // namespace

std::string EncodeEvidence(const NodeEvidence& evidence, size_t max_bytes) {
  std::string text;
  for (const auto& [with_facts, with_frames] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, false)}) {
    text = Encode(evidence, with_facts, with_frames);
    if (text.size() <= max_bytes) break;
  }
  return text;
}

absl::StatusOr<NodeEvidence> DecodeEvidence(const std::string& json) {
  absl::StatusOr<Json> parsed = ParseJson<Json>(json, kLimits);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("evidence: ", parsed.status().message()));
  if (!parsed->is_object()) return absl::InvalidArgumentError("evidence: not an object");
  return Reader().Read(*parsed);
}

void EvidenceBook::Add(NodeEvidence evidence) {
  std::erase_if(ranks_, [&](const auto& known) { return known.second.first == evidence.first_rank; });
  std::vector<std::optional<uint32_t>> groups, calls;
  for (const HangGroup& group : evidence.facts.groups) groups.push_back(tables_.AddGroup(group.name, group.members));
  for (HangCall& call : evidence.facts.calls) calls.push_back(tables_.AddCall(std::move(call)));
  for (auto& [rank, known] : evidence.facts.ranks) {
    const bool fits = std::all_of(known.ops.begin(), known.ops.end(), [&](HangOp& op) {
      const std::optional<uint32_t> group = groups[op.group], call = calls[op.call];
      if (!group || !call) return false;
      op.group = *group;
      op.call = *call;
      return true;
    });
    is_full_ |= !fits;
    if (fits) ranks_.insert_or_assign(rank, std::pair(evidence.first_rank, std::move(known)));
  }
  sources_[evidence.first_rank] = std::move(evidence.sources);
  if (!evidence.ras || (ras_ && ras_->has_answered)) return;
  if (!ras_ || evidence.ras->has_answered || !evidence.ras->notes.empty()) ras_ = std::move(evidence.ras);
}

Finding EvidenceBook::Judge() {
  Finding finding;
  std::map<int, HangRank> ranks;
  for (const auto& [rank, known] : ranks_) ranks.emplace(rank, known.second);
  if (!ranks.empty()) finding.hang = diagnosis::FindHang(readers::ResolveGroups(tables_.Copy(std::move(ranks))));
  if (!ranks_.empty() && !finding.hang) {
    finding.notes.emplace_back("the dumps of the flight recorders show no operation that waits");
  }
  if (is_full_) finding.notes.emplace_back("not all dumps could be used: together they have too many operations");
  if (ras_) {
    finding.notes.insert(finding.notes.end(), ras_->notes.begin(), ras_->notes.end());
    // Beside dumps: these say more.
    if (!finding.hang || (finding.hang->origins.empty() && ras_->hang && !ras_->hang->origins.empty())) {
      finding.hang = ras_->hang;
    } else if (ras_->hang) {
      finding.notes.push_back(ras_->hang->text);
    }
  }
  for (const auto& [launcher, sources] : sources_) {
    for (const Source& source : sources) {
      if (finding.sources.size() < Finding::kMaxSources) {
        finding.sources.push_back(source);
      } else {
        ++finding.more_sources;
      }
    }
  }
  return finding;
}

std::string TextOf(const Finding& finding) {
  // Of dumps the prefix stands for all.
  std::map<std::string, std::vector<int>> dumps;
  std::vector<std::string> files;
  for (const Source& source : finding.sources) {
    if (source.rank < 0) {
      files.push_back(absl::StrCat("NCCL RAS at ", Printable(source.path)));
      continue;
    }
    std::string prefix = source.path;
    const std::string rank = absl::StrCat(source.rank);
    if (prefix.ends_with(rank)) prefix.resize(prefix.size() - rank.size());
    dumps[prefix].push_back(source.rank);
  }
  for (const auto& [prefix, ranks] : dumps) {
    if (files.size() <= kNamedPaths) files.push_back(absl::StrCat(Printable(prefix), "* of ", RanksText(ranks)));
  }
  std::string text = finding.hang            ? finding.hang->text
                     : finding.notes.empty() ? "nothing that could be read"
                                             : finding.notes[0];
  if (!files.empty()) absl::StrAppend(&text, " (", absl::StrJoin(files, "; "), ")");
  return text;
}

}  // namespace taskd::evidence
