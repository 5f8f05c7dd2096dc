#include "manager/verdicts/diagnosis_feed.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "manager/switch/core.h"

namespace taskd::manager {
namespace {

// How long after the last folds the engine may still wait for others; then nothing happens until folds come again.
constexpr uint64_t kDeadlinesKept = 3;

size_t BytesOf(const GroupInfo& group) {
  return sizeof(GroupInfo) + group.name.size() + group.label.size() + group.members.size() * sizeof(MemberRun);
}

}  // namespace

size_t BytesOf(const FoldBatch& batch) {
  size_t bytes = sizeof(FoldBatch);
  for (const FoldBatch::Groups& rank : batch.groups) {
    bytes += sizeof rank;
    for (const GroupInfo& group : rank.groups) bytes += BytesOf(group);
  }
  for (const FoldBatch::Step& step : batch.steps) {
    bytes += sizeof step + step.fold.ops.capacity() * sizeof(OpFold) + step.fold.samples.capacity() * sizeof(OpSample);
  }
  return bytes;
}

DiagnosisFeed::DiagnosisFeed(const Options& options) : options_(options), engine_(options.engine) {}

int DiagnosisFeed::FirstRank(const Reported& reported) {
  if (reported.empty()) return -1;
  int first = reported.begin()->first;
  int count = static_cast<int>(reported.size());
  return reported.rbegin()->first == first + count - 1 && first % count == 0 ? first : -1;
}

DiagnosisFeed::Rank& DiagnosisFeed::At(int rank) {
  if (ranks_.size() <= static_cast<size_t>(rank)) ranks_.resize(static_cast<size_t>(rank) + 1);
  return ranks_[static_cast<size_t>(rank)];
}

uint64_t DiagnosisFeed::owner(int rank) const {
  return InRange(rank) && static_cast<size_t>(rank) < ranks_.size() ? ranks_[static_cast<size_t>(rank)].stream : 0;
}

diagnosis::RankPlace DiagnosisFeed::place(int rank) const {
  auto found = streams_.find(owner(rank));
  if (found == streams_.end()) return {};
  return {found->second.node, found->second.host, ranks_[static_cast<size_t>(rank)].local_rank};
}

std::vector<std::pair<int, std::string>> DiagnosisFeed::Accused(const diagnosis::Verdict& verdict) const {
  std::set<std::pair<int, std::string>> nodes;
  if (verdict.scope == diagnosis::Scope::kRank) {
    for (int rank : verdict.ids) {
      if (const diagnosis::RankPlace where = place(rank); where.node >= 0) nodes.emplace(where.node, where.host);
    }
  } else if (verdict.scope == diagnosis::Scope::kNode) {
    const std::set<int> ids(verdict.ids.begin(), verdict.ids.end());
    for (const auto& [id, stream] : streams_) {
      if (ids.count(stream.node) != 0 && stream.owns > 0) nodes.emplace(stream.node, stream.host);
    }
  }
  return {nodes.begin(), nodes.end()};
}

void DiagnosisFeed::ReportGone(Rank& rank, int number) {
  engine_.RemoveRank(number);
  if (rank.live) --counts_.live_ranks;
  rank.live = false;
}

void DiagnosisFeed::Release(Rank& rank, int number) {
  if (rank.live) ReportGone(rank, number);
  auto owner = streams_.find(rank.stream);
  if (owner != streams_.end()) --owner->second.owns;
  engine_.DropGroups(number, 0);
  if (options_.on_groups) options_.on_groups(-1, number, {});
  const uint64_t rival = rank.rival;
  rank = Rank{};
  rank.rival = rival;
}

void DiagnosisFeed::Place(const Stream& stream, int rank) {
  Rank& state = At(rank);
  int first = FirstRank(stream.reported);
  state.local_rank = first >= 0 && stream.reported.count(rank) != 0 ? rank - first : -1;
  engine_.SetPlace(rank, {stream.node, stream.host, state.local_rank});
}

bool DiagnosisFeed::IsFree(int rank) const {
  const auto found = streams_.find(owner(rank));
  if (found == streams_.end()) return true;
  return !found->second.connected || found->second.replaced ||
         ranks_[static_cast<size_t>(rank)].presence == Presence::kDetached;
}

bool DiagnosisFeed::ReportsAttached(uint64_t id, int rank) const {
  const auto stream = streams_.find(id);
  if (stream == streams_.end() || !stream->second.connected || stream->second.replaced) return false;
  const auto reported = stream->second.reported.find(rank);
  return reported != stream->second.reported.end() && reported->second;
}

bool DiagnosisFeed::Claim(uint64_t id, Stream& stream, int rank) {
  Rank& state = At(rank);
  if (state.stream == id) return true;
  if (stream.owns >= static_cast<size_t>(kMaxRanksPerNode)) return false;
  // Not gone for the engine: it goes on with another owner.
  auto former = streams_.find(state.stream);
  if (former != streams_.end()) --former->second.owns;
  if (state.rival == id) state.rival = 0;
  state.stream = id;
  state.presence = Presence::kUnknown;
  state.stopped_ms.reset();
  ++stream.owns;
  stream.owned.push_back(rank);
  if (stream.owned.size() > 2 * static_cast<size_t>(kMaxRanksPerNode)) {
    // Others have claimed most of them, again and again.
    std::sort(stream.owned.begin(), stream.owned.end());
    stream.owned.erase(std::unique(stream.owned.begin(), stream.owned.end()), stream.owned.end());
    std::erase_if(stream.owned, [&](int owned) { return At(owned).stream != id; });
  }
  return true;
}

void DiagnosisFeed::TakeAttached(uint64_t id, int number, bool attached) {
  if (owner(number) != id) return;
  Rank& rank = At(number);
  const Presence presence = attached ? Presence::kAttached : Presence::kDetached;
  if (options_.on_presence && rank.presence != presence) options_.on_presence(number, attached);
  rank.presence = presence;
  has_attached_ = has_attached_ || attached;
  if (!attached && rank.live) ReportGone(rank, number);
  if (attached && !rank.live) {
    // It counts once it folds: a rank without marks is nobody to wait for.
    rank.live = true;
    ++counts_.live_ranks;
  }
}

void DiagnosisFeed::TakeStopped(Rank& rank, const RankPresence& presence) {
  const uint64_t before_ms = rank.stopped_ms.value_or(presence.stopped_ms);
  rank.stopped_ms = presence.stopped_ms;
  // Less than before: another proxy counts.
  if (options_.on_stopped && presence.stopped_ms > before_ms) {
    options_.on_stopped(presence.rank, presence.stopped_ms - before_ms);
  }
}

void DiagnosisFeed::HandOver(int rank) {
  const uint64_t rival = At(rank).rival;
  if (rival == 0 || !IsFree(rank)) return;
  At(rank).rival = 0;
  if (!ReportsAttached(rival, rank) || !Claim(rival, streams_.at(rival), rank)) return;
  TakeAttached(rival, rank, true);
  Place(streams_.at(rival), rank);
}

void DiagnosisFeed::Connect(uint64_t stream, int node, const std::string& host, uint64_t life) {
  for (auto& [id, other] : streams_) {
    if (id != stream && other.node == node && other.host == host) other.replaced = true;
  }
  Stream& state = streams_[stream];
  state.node = node;
  state.host = host;
  state.life = life;
  has_connected_ = true;
}

void DiagnosisFeed::Ranks(uint64_t id, const std::vector<RankPresence>& ranks) {
  auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  const Reported before = std::exchange(stream.reported, {});
  for (const RankPresence& presence : ranks) {
    if (InRange(presence.rank)) stream.reported[presence.rank] = presence.attached;
    if (stream.reported.size() >= static_cast<size_t>(kMaxRanksPerNode)) break;
  }
  for (const auto& [number, attached] : stream.reported) {
    const bool is_mine = owner(number) == id;
    if (attached && !is_mine && IsFree(number)) Claim(id, stream, number);
    if (attached && owner(number) != id) At(number).rival = id;
    TakeAttached(id, number, attached);
    if (is_mine && !attached) HandOver(number);
  }
  for (const RankPresence& presence : ranks) {
    if (!InRange(presence.rank) || owner(presence.rank) != id) continue;
    At(presence.rank).kinds_on = presence.kinds_on;
    steps_were_on_ = steps_were_on_ || At(presence.rank).Records(SwitchKind::kStep, false);
    TakeStopped(At(presence.rank), presence);
    if (options_.on_saved && presence.saved.step >= 0) options_.on_saved(presence.rank, presence.saved);
    if (presence.kinds_on) engine_.SetMarksOn(presence.rank, *presence.kinds_on);
  }
  for (const auto& [number, attached] : before) {
    if (stream.reported.count(number) == 0 && owner(number) == id) {
      Release(At(number), number);
      HandOver(number);
    }
  }
  std::erase_if(stream.owned, [&](int number) { return owner(number) != id; });
  for (int number : stream.owned) Place(stream, number);
}

bool DiagnosisFeed::MayFeed(uint64_t id, Stream& stream, int rank) {
  if (!InRange(rank)) return false;
  if (owner(rank) == id) return true;
  // A rank that has ended on its node goes only to one that says that it lives there.
  const bool ended = owner(rank) != 0 && At(rank).presence == Presence::kDetached && !ReportsAttached(id, rank);
  if (stream.replaced || !IsFree(rank) || (ended && streams_.at(owner(rank)).connected)) return false;
  if (!Claim(id, stream, rank)) return false;
  auto reported = stream.reported.find(rank);
  if (reported != stream.reported.end())
    At(rank).presence = reported->second ? Presence::kAttached : Presence::kDetached;
  Place(stream, rank);
  return true;
}

void DiagnosisFeed::SetGroups(const Stream& stream, FoldBatch::Groups groups) {
  if (groups.groups.size() > kMaxGroups) {
    counts_.groups_unused += groups.groups.size() - kMaxGroups;
    groups.groups.resize(kMaxGroups);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < groups.groups.size(); ++i) {
    GroupInfo& group = groups.groups[i];
    bytes += BytesOf(group);
    bool used = bytes <= kMaxGroupBytes || group.members.empty();
    if (!used) group.members = {};
    used = engine_.SetGroup(groups.rank, static_cast<uint32_t>(i), group) && used;
    if (used) continue;
    group.members = {};
    ++counts_.groups_unused;
  }
  engine_.DropGroups(groups.rank, static_cast<uint32_t>(groups.groups.size()));
  if (options_.on_groups) options_.on_groups(stream.node, groups.rank, groups.groups);
}

bool DiagnosisFeed::ComesAgain(const Stream& stream, Rank& rank, uint64_t number) {
  if (stream.life == 0 || number == 0) return false;
  if (stream.life == rank.life && number <= rank.taken) return true;
  rank.life = stream.life;
  rank.taken = number;
  return false;
}

void DiagnosisFeed::Folds(uint64_t id, FoldBatch batch, uint64_t now_ns) {
  auto found = streams_.find(id);
  counts_.refused += batch.unreadable;
  if (found == streams_.end()) {
    counts_.refused += batch.steps.size();
    return;
  }
  Stream& stream = found->second;
  if (stream.connected) counts_.proxy_dropped += batch.proxy_dropped - stream.proxy_dropped;
  stream.proxy_dropped = batch.proxy_dropped;
  counts_.groups_unused += batch.bad_groups;
  for (FoldBatch::Groups& groups : batch.groups) {
    if (MayFeed(id, stream, groups.rank)) SetGroups(stream, std::move(groups));
  }
  std::vector<int> late;  // ranks that have ended: these are their last steps
  for (FoldBatch::Step& step : batch.steps) {
    if (!MayFeed(id, stream, step.rank)) {
      ++counts_.refused;
      continue;
    }
    Rank& rank = At(step.rank);
    if (ComesAgain(stream, rank, step.number)) {
      ++counts_.again;
      continue;
    }
    if (!rank.live) {
      rank.live = true;
      ++counts_.live_ranks;
      if (rank.presence == Presence::kDetached) late.push_back(step.rank);
    }
    if (options_.on_step) options_.on_step(step.rank, step.fold, now_ns);
    if (!engine_.Add(step.rank, std::move(step.fold), now_ns)) ++counts_.unused;
    ++counts_.steps;
  }
  for (int rank : late) ReportGone(At(rank), rank);
  busy_until_ns_ = now_ns + kDeadlinesKept * options_.engine.step_deadline_ns;
}

void DiagnosisFeed::Disconnect(uint64_t id, uint64_t now_ns) {
  auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.connected) return;
  found->second.connected = false;
  counts_.proxy_dropped -= found->second.proxy_dropped;
  found->second.away_since_ns = now_ns;
  ++away_;
  for (int number : found->second.owned) {
    if (owner(number) == id) HandOver(number);
  }
}

bool DiagnosisFeed::Advance(uint64_t now_ns) {
  for (auto it = streams_.begin(); away_ > 0 && it != streams_.end();) {
    Stream& stream = it->second;
    bool over = !stream.connected && (stream.owns == 0 || now_ns - stream.away_since_ns >= options_.away_ns);
    if (!over) {
      ++it;
      continue;
    }
    for (int number : stream.owned) {
      if (owner(number) != it->first) continue;
      Release(At(number), number);
      HandOver(number);
    }
    it = streams_.erase(it);
    --away_;
  }
  return engine_.Advance(now_ns);
}

// Who is set aside, by rank; empty: nobody is.
std::string DiagnosisFeed::Rivals() const {
  std::string text;
  size_t more = 0;
  for (size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    if (rank.rival == 0) continue;
    const auto owner = streams_.find(rank.stream);
    if (owner == streams_.end() || !ReportsAttached(rank.rival, static_cast<int>(number))) continue;
    if (!text.empty()) {
      ++more;
      continue;
    }
    const Stream& rival = streams_.at(rank.rival);
    text = absl::StrCat("rank ", number, " is reported by node ", owner->second.node, " (", owner->second.host,
                        ") and by node ", rival.node, " (", rival.host, "): that of ", rival.host, " is not used");
  }
  if (more > 0) absl::StrAppend(&text, "; ", more, " more ranks are reported twice");
  return text;
}

// Why no step comes, or none that can be judged; empty: it is not known.
std::string DiagnosisFeed::AdviseOnSteps() const {
  int attached = 0, without_steps = 0, without_communication = 0;
  for (const Rank& rank : ranks_) {
    if (rank.presence != Presence::kAttached) continue;
    ++attached;
    without_steps += rank.Records(SwitchKind::kStep, true) ? 0 : 1;
    without_communication += rank.Records(SwitchKind::kCommunication, true) ? 0 : 1;
  }
  const auto of_ranks = [&](int count) {
    return count == attached ? std::string() : absl::StrCat(" in ", count, " of ", attached, " ranks");
  };
  if (without_steps > 0) {
    return absl::StrCat("steps are switched off", of_ranks(without_steps), " (taskd switch all=on)");
  }
  if (without_communication > 0) {
    return absl::StrCat("communication is switched off", of_ranks(without_communication),
                        ", so waits look like work (taskd switch communication=on)");
  }
  if (counts_.steps > 0) return "";
  if (streams_.empty() && !has_connected_) return "no node has connected yet";
  constexpr char kWhatIsOne[] = "only what a rank marks as \"step N\" is one (docs/marks.md)";
  if (attached > 0) return absl::StrCat("no step has ended yet: ", kWhatIsOne);
  if (steps_were_on_) return absl::StrCat("the ranks have ended without a step: ", kWhatIsOne);
  if (has_attached_) return "the ranks have ended, and marks were off (taskd switch all=on, or taskd run --marks all)";
  return absl::StrCat("no rank has made a mark", streams_.empty() ? "" : " yet",
                      ": PyTorch makes them where taskd is installed in the ranks' Python, or with -m taskd.torch "
                      "(docs/marks.md)");
}

bool DiagnosisFeed::AreMarksOff() const {
  bool is_any_attached = false;
  for (const Rank& rank : ranks_) {
    if (rank.presence != Presence::kAttached) continue;
    is_any_attached = true;
    if (rank.Records(SwitchKind::kStep, counts_.steps > 0)) return false;  // without a switch nothing is recorded
  }
  return is_any_attached;
}

diagnosis::Report DiagnosisFeed::report() const {
  diagnosis::Report report = engine_.report();
  if (std::string rivals = Rivals(); !rivals.empty()) {
    report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(rivals)});
  }
  if (AreMarksOff()) {  // what was found before is of steps that are over
    const int64_t last = report.last_step;
    const std::string since = last < 0 ? "" : absl::StrCat(" since step ", last);
    report.state = diagnosis::JobState::kUnknown;
    for (diagnosis::Verdict& verdict : report.verdicts) {
      verdict.unjudged = verdict.unjudged || verdict.open;
      verdict.open = false;
    }
    std::erase_if(report.notes, [](const diagnosis::Note& note) { return note.kind == diagnosis::NoteKind::kShort; });
    report.notes.insert(report.notes.begin(), {diagnosis::NoteKind::kOff,
                                               absl::StrCat("marks are off", since, " (taskd switch all=on)"), last});
    return report;
  }
  const std::string advice = AdviseOnSteps();
  if (advice.empty()) return report;
  if (engine_.has_few_steps()) {
    std::string& text = report.notes.front().text;
    text = absl::StrCat(advice, "; ", text);  // what to do comes first
  } else if (report.state == diagnosis::JobState::kUnknown) {
    report.notes.insert(report.notes.begin(), {diagnosis::NoteKind::kOff, advice, report.last_step});
  }
  return report;
}

DiagnosisFeed::Counts DiagnosisFeed::counts() const {
  Counts counts = counts_;
  counts.group_bytes = engine_.group_bytes();
  counts.waiting_bytes = engine_.waiting_bytes();
  return counts;
}

}  // namespace taskd::manager
