#include "manager/verdicts/diagnosis_core.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace taskd::manager {
namespace {

using std::chrono::milliseconds;

// While a step waits for its last ranks.
constexpr milliseconds kTick{250};

uint64_t Nanoseconds(SteadyTime time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// What of a verdict is worth a write to the disk at once.
std::string NamedBy(const std::vector<diagnosis::Verdict>& verdicts) {
  std::string text;
  for (const diagnosis::Verdict& verdict : verdicts) {
    absl::StrAppend(&text, verdict.id, verdict.open ? "o" : "c", static_cast<int>(verdict.scope), ",",
                    static_cast<int>(verdict.cause), ":");
    for (int id : verdict.ids) absl::StrAppend(&text, id, ",");
    for (const diagnosis::Link& link : verdict.links) absl::StrAppend(&text, link.a, "-", link.b, ",");
    text += ';';
  }
  return text;
}

// Open ones before cleared ones, newer before older, as many as are kept.
std::vector<diagnosis::Verdict> Newest(std::vector<diagnosis::Verdict> verdicts) {
  std::sort(verdicts.begin(), verdicts.end(), [](const diagnosis::Verdict& a, const diagnosis::Verdict& b) {
    return a.open != b.open ? a.open : a.id > b.id;
  });
  if (verdicts.size() > DiagnosisCore::kMaxKeptVerdicts) verdicts.resize(DiagnosisCore::kMaxKeptVerdicts);
  return verdicts;
}

}  // namespace

double CoverageOf(const diagnosis::Report& report) {
  if (report.coverage.empty()) return 0;
  const auto sufficient = std::count_if(report.coverage.begin(), report.coverage.end(),
                                        [](const diagnosis::RankCoverage& rank) { return rank.sufficient; });
  return static_cast<double>(sufficient) / static_cast<double>(report.coverage.size());
}

DiagnosisCore::DiagnosisCore(const Options& options, const std::vector<diagnosis::Verdict>& kept, Save save)
    : options_(options), save_(std::move(save)), feed_(options.feed) {
  feed_.Restore(kept);
  for (const diagnosis::Verdict& verdict : kept) {
    last_verdict_ = std::max(last_verdict_, verdict.id);
    accused_[verdict.id] = verdict.nodes;
  }
  saved_as_ = NamedBy(Newest(kept));
  Publish(false, SteadyTime{});
  thread_ = std::thread([this] { Run(); });
}

DiagnosisCore::~DiagnosisCore() { Close(); }

void DiagnosisCore::Close() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  for (const Question& question : questions_) question.answer(absl::UnavailableError("the manager ends"));
  questions_.clear();
  SaveIfDue(options_.now(), true);
  std::lock_guard lock(report_mutex_);
  closed_ = true;
  for (ReportSink* sink : sinks_) sink->Close();
  sinks_.clear();
}

template <typename Put>
void DiagnosisCore::Post(uint64_t stream, Put put) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (inbox_.empty()) inbox_since_ = options_.now();
    put(inbox_[stream]);
    wake = std::exchange(waiting_, false);
  }
  if (wake) wake_.notify_one();
}

void DiagnosisCore::Connect(uint64_t stream, int node, std::string host, uint64_t life) {
  Post(stream, [&](Mailbox& mailbox) { mailbox.hello = Hello{node, std::move(host), life}; });
}

void DiagnosisCore::Ranks(uint64_t stream, std::vector<RankPresence> ranks) {
  Post(stream, [&](Mailbox& mailbox) { mailbox.ranks = std::move(ranks); });
}

void DiagnosisCore::Disconnect(uint64_t stream) {
  Post(stream, [&](Mailbox& mailbox) { mailbox.ended = true; });
}

void DiagnosisCore::Folds(uint64_t stream, FoldBatch batch) {
  size_t bytes = BytesOf(batch);
  Post(stream, [&](Mailbox& mailbox) {
    stats_.received += batch.steps.size();
    mailbox.bytes += bytes;
    inbox_bytes_ += bytes;
    mailbox.folds.emplace_back(std::move(batch), bytes);
    const size_t engine_bytes = stats_.feed.group_bytes + stats_.feed.waiting_bytes;
    while (inbox_bytes_ > 0 && inbox_bytes_ + taken_bytes_ + engine_bytes > options_.max_bytes) {
      Mailbox& fullest = std::max_element(inbox_.begin(), inbox_.end(), [](const auto& a, const auto& b) {
                           return a.second.bytes < b.second.bytes;
                         })->second;
      auto& [oldest, oldest_bytes] = fullest.folds.front();
      stats_.dropped += oldest.steps.size();
      fullest.bytes -= oldest_bytes;
      inbox_bytes_ -= oldest_bytes;
      fullest.folds.pop_front();
    }
  });
}

std::shared_ptr<const diagnosis::Report> DiagnosisCore::report() const {
  asked_ = true;
  std::lock_guard lock(report_mutex_);
  return report_;
}

void DiagnosisCore::Why(int rank, Answer answer) {
  absl::Status refused;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) {
      refused = absl::UnavailableError("the manager ends");
    } else if (questions_.size() >= kMaxQuestions) {
      refused = absl::ResourceExhaustedError("too many such questions wait; ask again");
    } else {
      questions_.push_back({rank, std::move(answer)});
      wake = std::exchange(waiting_, false);
    }
  }
  if (wake) wake_.notify_one();
  if (!refused.ok()) answer(refused);
}

void DiagnosisCore::Finish() {
  std::promise<void> done;
  Why(kAtEnd, [&done](const absl::StatusOr<diagnosis::RankTrace>&) { done.set_value(); });
  done.get_future().wait();
}

bool DiagnosisCore::Subscribe(ReportSink* sink) {
  std::lock_guard lock(report_mutex_);
  if (closed_) return false;
  sinks_.insert(sink);
  sink->Changed(report_);
  return true;
}

void DiagnosisCore::Unsubscribe(ReportSink* sink) {
  std::lock_guard lock(report_mutex_);
  sinks_.erase(sink);
}

DiagnosisCore::Stats DiagnosisCore::stats() const {
  Stats stats;
  {
    std::lock_guard lock(mutex_);
    stats = stats_;
  }
  // Held: what is published meanwhile must not end it.
  const std::shared_ptr<const diagnosis::Report> kept = report();
  stats.coverage = CoverageOf(*kept);
  stats.own_time = kept->own_time;
  stats.dataloader = kept->dataloader;
  stats.transfer = kept->transfer;
  for (const diagnosis::Verdict& verdict : kept->verdicts) {
    if (!verdict.open) continue;
    ++stats.open_verdicts;
    stats.cost_ms_per_step = std::max(stats.cost_ms_per_step, verdict.cost_ms_per_step);
  }
  return stats;
}

void DiagnosisCore::ClockHasChanged() {
  // The thread has either not looked at the clock yet, or waits.
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

template <typename Ready>
void DiagnosisCore::Wait(std::unique_lock<std::mutex>& lock, std::optional<SteadyTime> due, Ready ready) {
  while (!ready()) {
    if (!due.has_value()) {
      wake_.wait(lock);
      continue;
    }
    const SteadyTime now = options_.now();
    if (now >= *due) return;
    wake_.wait_for(lock, *due - now);
  }
}

void DiagnosisCore::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    // Until there is mail, or something is due.
    SteadyTime now = options_.now();
    std::optional<SteadyTime> due;
    auto at = [&](SteadyTime time) { due = due.has_value() ? std::min(*due, time) : time; };
    if (unpublished_) at(published_at_ + Refresh());
    // As of the last round: what has become due since, while this thread did not run, is still to be judged.
    if (feed_.waits_for_time(Nanoseconds(round_at_))) at(now + kTick);
    if (unsaved_) at(saved_at_ + kSaveAgain);
    auto ready = [this] { return stopping_ || !inbox_.empty() || !questions_.empty(); };
    waiting_ = true;
    Wait(lock, due, ready);
    waiting_ = false;
    if (stopping_) return;

    Inbox inbox = std::exchange(inbox_, {});
    const std::vector<Question> questions = std::exchange(questions_, {});
    taken_bytes_ = std::exchange(inbox_bytes_, 0);
    SteadyTime oldest = inbox_since_;
    lock.unlock();
    now = options_.now();
    Round(inbox, oldest, now);
    for (const Question& question : questions) {
      if (question.rank == kAtEnd) {
        feed_.Finish();
        Publish(true, now);
        unsaved_ = static_cast<bool>(save_);
      }
      question.answer(feed_.Why(question.rank));
    }
    SaveIfDue(now, false);
    lock.lock();
    Wait(lock, now + kPace, [this] { return stopping_; });
  }
}

void DiagnosisCore::Round(Inbox& inbox, SteadyTime oldest, SteadyTime now) {
  const uint64_t now_ns = Nanoseconds(now);
  bool mail = !inbox.empty();
  feed_.SetWorldSize(world_size_);
  for (auto& [stream, mailbox] : inbox) {
    if (mailbox.hello.has_value()) feed_.Connect(stream, mailbox.hello->node, mailbox.hello->host, mailbox.hello->life);
    if (mailbox.ranks.has_value()) feed_.Ranks(stream, *mailbox.ranks);
    for (auto& [batch, bytes] : mailbox.folds) feed_.Folds(stream, std::move(batch), now_ns);
    if (mailbox.ended) feed_.Disconnect(stream, now_ns);
  }
  inbox.clear();
  {
    std::lock_guard lock(mutex_);
    taken_bytes_ = 0;
    const DiagnosisFeed::Counts held = feed_.counts();
    stats_.feed.group_bytes = held.group_bytes;
    stats_.feed.waiting_bytes = held.waiting_bytes;
  }
  // Time alone judges steps, too, and forgets who is away.
  const bool timed = feed_.waits_for_time(Nanoseconds(std::exchange(round_at_, now)));
  bool changed = feed_.Advance(now_ns);
  unpublished_ = unpublished_ || mail || timed || changed;
  unsaved_ = unsaved_ || (changed && save_);
  const SteadyTime judged = options_.now();
  {
    // Before the report: who has seen a verdict finds its folds counted.
    std::lock_guard lock(mutex_);
    stats_.feed = feed_.counts();
    stats_.busy_s += std::chrono::duration<double>(judged - now).count();
    if (mail) stats_.lag_s = std::chrono::duration<double>(judged - oldest).count();
  }
  if (changed || (unpublished_ && now - published_at_ >= Refresh())) Publish(changed, now);
}

void DiagnosisCore::CountOpened(const diagnosis::Report& report) {
  uint64_t last = last_verdict_;
  std::lock_guard lock(mutex_);
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    if (verdict.id <= last_verdict_) continue;
    last = std::max(last, verdict.id);
    ++stats_.opened[static_cast<size_t>(verdict.cause)];
  }
  last_verdict_ = last;
}

void DiagnosisCore::NameNodes(std::vector<diagnosis::Verdict>& verdicts) {
  std::map<uint64_t, std::vector<diagnosis::AccusedNode>> before = std::exchange(accused_, {});
  for (diagnosis::Verdict& verdict : verdicts) {
    verdict.nodes = std::move(before[verdict.id]);
    std::vector<diagnosis::AccusedNode> nodes;
    if (verdict.open && options_.identify) {
      for (const auto& [node, host] : feed_.Accused(verdict)) {
        const std::optional<NodeIdentity> named = options_.identify(node, host);
        if (named) nodes.push_back({node, named->host, named->pod, named->node_name});
      }
    }
    if (!nodes.empty()) verdict.nodes = std::move(nodes);
    accused_[verdict.id] = verdict.nodes;
  }
}

void DiagnosisCore::Publish(bool changed, SteadyTime now) {
  asked_ = false;
  diagnosis::Report judged = feed_.report();
  NameNodes(judged.verdicts);
  auto report = std::make_shared<const diagnosis::Report>(std::move(judged));
  if (changed) CountOpened(*report);  // before it is seen
  unpublished_ = false;
  published_at_ = now;
  std::lock_guard lock(report_mutex_);
  report_ = std::move(report);
  if (!changed) return;
  for (ReportSink* sink : sinks_) sink->Changed(report_);
}

void DiagnosisCore::SaveIfDue(SteadyTime now, bool last) {
  if (!unsaved_) return;
  std::vector<diagnosis::Verdict> verdicts = Newest(report()->verdicts);
  std::string name = NamedBy(verdicts);
  if (!last && now - saved_at_ < kSaveAgain && (save_failed_ || name == saved_as_)) return;
  absl::Status status = save_(verdicts);
  if (!status.ok() && !save_failed_) {
    spdlog::error("the verdicts cannot be kept, a restarted manager would not know them: {}", status.message());
  } else if (status.ok() && save_failed_) {
    spdlog::info("the verdicts are kept again");
  }
  save_failed_ = !status.ok();
  saved_at_ = now;
  if (!status.ok()) return;
  saved_as_ = std::move(name);
  unsaved_ = false;
}

}  // namespace taskd::manager
