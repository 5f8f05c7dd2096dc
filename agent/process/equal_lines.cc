#include "agent/process/equal_lines.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/ranges_text.h"

namespace taskd::process {

EqualLines::~EqualLines() {
  if (timer_) loop_->Cancel(*timer_);
}

std::string EqualLines::Prefix(const std::string& pattern, const std::vector<Member>& members) {
  std::set<int> local_ranks, ranks;
  for (const Member& member : members) {
    local_ranks.insert(member.local_rank);
    ranks.insert(member.rank);
  }
  return absl::StrReplaceAll(
      pattern, {{"${local_rank}", FormatAllRanges(local_ranks, ",")}, {"${rank}", FormatAllRanges(ranks, ",")}});
}

int EqualLines::Join(Source source) {
  std::string own_prefix = Prefix(source.prefix, {{0, source.local_rank, source.rank}});
  const bool waits = own_prefix != source.prefix;
  if (waits) ++waiters_;
  writers_[++next_id_] = std::make_shared<const Writer>(Writer{std::move(source), std::move(own_prefix), waits});
  return next_id_;
}

void EqualLines::Leave(int source) {
  auto found = writers_.find(source);
  if (found == writers_.end()) return;
  if (found->second->waits) --waiters_;
  writers_.erase(found);
  Show();
}

void EqualLines::Add(int source, std::string_view lines) {
  const std::shared_ptr<const Writer> writer = writers_.at(source);
  std::string at_once;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    lines.remove_prefix(line.size());
    if (writer->waits) {
      AddOne(source, writer, line);
      if (full()) Show();
    } else {
      at_once += writer->own_prefix;
      at_once += line;
    }
  }
  if (!at_once.empty()) output_(std::move(at_once), writer->source.share);
  Show();
}

void EqualLines::AddOne(int id, const std::shared_ptr<const Writer>& writer, std::string_view text) {
  const Source& source = writer->source;
  const Member member{id, source.local_rank, source.rank};
  const size_t hash = std::hash<std::string_view>()(text);
  auto equal = lines_.end();
  for (auto slot = lines_.end(); slot != lines_.begin();) {
    --slot;
    if (slot->sole == id) continue;
    const Line& line = *slot->line;
    auto is_mine = [id](const Member& one) { return one.id == id; };
    if (slot->sole == 0 && std::any_of(line.members.begin(), line.members.end(), is_mine)) break;
    if (slot->hash == hash && line.text == text && line.first->source.prefix == source.prefix) equal = slot;
  }
  if (equal == lines_.end()) {
    held_bytes_ += text.size();
    lines_.push_back({hash, id, std::make_unique<Line>()});
    *lines_.back().line = {std::string(text), now_() + kHoldNs, writer, {member}};
    return;
  }
  const int64_t due_ns = equal->line->due_ns;
  auto joined = std::stable_partition(equal, lines_.end(), [id](const Slot& slot) { return slot.sole == id; });
  for (auto moved = equal; moved != joined; ++moved) moved->line->due_ns = std::min(moved->line->due_ns, due_ns);
  joined->sole = 0;
  joined->line->members.push_back(member);
}

void EqualLines::Show() {
  const int64_t now_ns = now_();
  const bool was_full = full();  // then half of it is shown: line by line would be slow
  std::string text;
  std::shared_ptr<Console::Share> share;
  while (!lines_.empty()) {
    const Line& line = *lines_.front().line;
    const bool too_much = was_full && (held_bytes_ > kMaxHeldBytes / 2 || lines_.size() > kMaxHeldLines / 2);
    if (line.members.size() < waiters_ && line.due_ns > now_ns && !too_much) break;
    const Source& source = line.first->source;
    if (source.share != share && !text.empty()) output_(std::exchange(text, ""), share);
    share = source.share;
    text += line.members.size() == 1 ? line.first->own_prefix : Prefix(source.prefix, line.members);
    text += line.text;
    held_bytes_ -= line.text.size();
    lines_.pop_front();
  }
  if (!text.empty()) output_(std::move(text), share);
  ShowLater();
}

void EqualLines::ShowLater() {
  if (timer_ || lines_.empty()) return;
  timer_ = loop_->RunAfter(lines_.front().line->due_ns - now_(), [this] {
    timer_.reset();
    Show();
  });
}

}  // namespace taskd::process
