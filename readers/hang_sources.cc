#include "readers/hang_sources.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "readers/nccl_ras.h"

namespace taskd::readers {
namespace {

// Takes the newest dump of each rank.
std::map<int, diagnosis::HangRank> GatherDumps(std::vector<SourceContent>& read, HangAnswer& answer) {
  const auto newest_ns = [&read](size_t i) {
    uint64_t newest = 0;
    for (const diagnosis::HangOp& op : read[i].dump.known.ops) newest = std::max(newest, op.created_ns);
    return newest;
  };
  std::map<int, size_t> of_rank;
  for (size_t i = 0; i < read.size(); ++i) {
    // A dump that was refused contains no facts.
    const bool is_empty = read[i].records == 0 && !read[i].note.empty();
    if (!read[i].is_dump() || read[i].rank < 0 || is_empty) continue;
    const auto [found, is_new] = of_rank.try_emplace(read[i].rank, i);
    if (is_new) continue;
    size_t older = i;
    if (newest_ns(i) > newest_ns(found->second)) std::swap(older, found->second);
    AddNote(read[older].note, absl::StrCat("left out: ", Printable(read[found->second].file.path),
                                           " is a dump of rank ", found->first, " too, and not older"));
  }
  const bool leaves_out_messages = std::any_of(
      of_rank.begin(), of_rank.end(), [&read](const auto& dump) { return read[dump.second].dump.leaves_out_messages; });
  if (leaves_out_messages) {
    answer.notes.push_back(
        {diagnosis::NoteKind::kNoData,
         "gloo's flight recorder leaves sends and receives out: who seems not to have come may wait in one"});
  }
  bool confirmed = false, contradicted = false;
  std::set<uint32_t> with_collectives;  // a status counts the messages of other groups
  for (const auto& [rank, i] : of_rank) {
    confirmed |= read[i].dump.confirms_order;
    contradicted |= read[i].dump.contradicts_order;
    for (const diagnosis::HangOp& op : read[i].dump.known.ops) {
      if (op.peer < 0) with_collectives.insert(op.group);
    }
  }
  std::map<int, diagnosis::HangRank> dumps;
  for (const auto& [rank, i] : of_rank) {
    diagnosis::HangRank& known = dumps.emplace(rank, std::move(read[i].dump.known)).first->second;
    known.is_partial |= leaves_out_messages;
    if (!confirmed || contradicted) continue;
    for (const auto& [group, number] : read[i].dump.called_by_status) {
      if (with_collectives.contains(group)) known.called.emplace(group, number);
    }
  }
  return dumps;
}

void JudgeDumps(const diagnosis::HangFacts& facts, HangAnswer& answer) {
  std::set<int> ranks;
  std::set<uint32_t> groups;  // dumps that were left out have no part in it
  for (const auto& [rank, known] : facts.ranks) {
    ranks.insert(rank);
    for (const diagnosis::HangOp& op : known.ops) groups.insert(op.group);
  }
  for (uint32_t group : groups) ranks.insert(facts.groups[group].members.begin(), facts.groups[group].members.end());
  answer.ranks = static_cast<int>(ranks.size());
  answer.hang = diagnosis::FindHang(facts);
  answer.format = SourceFormat::kFlightRecorder;
  std::vector<int> missing;
  for (int rank : ranks) {
    if (!facts.ranks.contains(rank)) missing.push_back(rank);
  }
  if (!missing.empty()) {
    answer.notes.push_back(
        {diagnosis::NoteKind::kNoData, absl::StrCat("of ", ranks.size(), " ranks there is no dump of ",
                                                    missing.size() == 1 ? "rank " : "ranks ", FormatRanges(missing))});
  }
  if (!answer.hang) {
    answer.notes.push_back(
        {diagnosis::NoteKind::kNoData, "the dumps of the flight recorders show no operation that waits"});
  }
}

// Returns the states in order of time.
std::vector<RasState> GatherRas(std::vector<SourceContent>& read) {
  std::vector<RasState> all, newest;
  for (SourceContent& file : read) {
    for (RasState& state : file.ras) all.push_back(std::move(state));
  }
  std::stable_sort(all.begin(), all.end(), [](const RasState& a, const RasState& b) { return a.since < b.since; });
  for (RasState& state : all) AddRasState(std::move(state), newest);
  return newest;
}

// Adds the finding to those of dumps, which are more detailed.
void AddRasFinding(RasFinding finding, HangAnswer& answer) {
  for (std::string& note : finding.notes) {
    answer.notes.push_back({diagnosis::NoteKind::kNoData, std::move(note)});
  }
  answer.ranks = std::max(answer.ranks, finding.ranks);
  if (!finding.hang) return;
  if (!answer.hang || (answer.hang->origins.empty() && !finding.hang->origins.empty())) {
    answer.hang = std::move(finding.hang);
    answer.format = SourceFormat::kNcclRas;
  } else {
    answer.notes.push_back(
        {diagnosis::NoteKind::kNoData, absl::StrCat(TitleOf(SourceFormat::kNcclRas), ": ", finding.hang->text)});
  }
}

}  // namespace

HangAnswer FindHangIn(std::vector<SourceContent>& read, HangTables& tables) {
  HangAnswer answer;
  std::map<int, diagnosis::HangRank> dumps = GatherDumps(read, answer);
  const std::vector<RasState> ras = GatherRas(read);
  if (!dumps.empty()) {
    answer.formats.push_back(SourceFormat::kFlightRecorder);
    JudgeDumps(tables.Take(std::move(dumps)), answer);
  }
  if (!ras.empty()) {
    answer.formats.push_back(SourceFormat::kNcclRas);
    AddRasFinding(JudgeRas(ras), answer);
  }
  return answer;
}

}  // namespace taskd::readers
