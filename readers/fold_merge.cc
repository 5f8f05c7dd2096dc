#include "readers/fold_merge.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace taskd::readers {
namespace {

// Equals the time that a step waits for its last rank (Engine::Options::step_deadline_ns).
constexpr uint64_t kGoneAfterNs = 10'000'000'000;

}  // namespace

FoldMerge::FoldMerge(const std::vector<FoldStream*>& streams, int threads, size_t buffer_bytes, const StepSeen& on_step)
    : streams_(streams),
      on_step_(on_step),
      buffers_(std::max(1, threads), std::vector<char>(buffer_bytes)),
      groups_sent_(streams.size(), 0) {}

void FoldMerge::Run(const Places& places, const std::function<void()>& after_round) {
  std::vector<size_t> low(streams_.size());
  for (size_t i = 0; i < low.size(); ++i) low[i] = i;
  while (true) {
    Refill(low);
    for (size_t i : waiting_) Enqueue(i);
    waiting_.clear();
    if (heads_.empty()) break;
    SendPlaces(places);
    FeedEngine();
    low.clear();
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i]->runs_low()) low.push_back(i);
    }
    if (after_round) after_round();
  }
  engine_.Finish();
}

// Reads the streams with these indices on all threads; one thread reads a stream.
void FoldMerge::Refill(const std::vector<size_t>& low) {
  std::atomic<size_t> next = 0;
  auto work = [&](std::vector<char>& buffer) {
    for (size_t i = next++; i < low.size(); i = next++) streams_[low[i]]->Refill(buffer);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(buffers_.size(), low.size()); ++i) {
    others.emplace_back([&work, &buffer = buffers_[i]] { work(buffer); });
  }
  work(buffers_[0]);
  for (std::thread& other : others) other.join();
  if (first_) {
    for (size_t i = 0; i < streams_.size(); ++i) waiting_.push_back(i);
    first_ = false;
  }
}

void FoldMerge::Enqueue(size_t i) {
  std::deque<StepFold>& folds = streams_[i]->folds();
  if (folds.empty()) {
    ended_.push_back({streams_[i]->rank(), now_ns_, added_ + 2 * heads_.size()});
  } else {
    heads_.push({folds.front().end_ns, i});
  }
}

void FoldMerge::SendPlaces(const Places& places) {
  std::vector<diagnosis::RankPlace> now;
  if (!places(now)) return;
  for (size_t i = 0; i < now.size(); ++i) {
    if (i >= places_.size() || places_[i].node != now[i].node) engine_.SetPlace(streams_[i]->rank(), now[i]);
  }
  places_ = std::move(now);
}

// Feeds summaries to the engine until the next one is not known.
void FoldMerge::FeedEngine() {
  while (waiting_.empty() && !heads_.empty()) {
    size_t i = heads_.top().second;
    heads_.pop();
    FoldStream& stream = *streams_[i];
    if (groups_sent_[i] != stream.groups_version()) {
      const std::vector<GroupInfo>& groups = stream.groups();
      for (size_t group = 0; group < groups.size(); ++group) {
        engine_.SetGroup(stream.rank(), static_cast<uint32_t>(group), groups[group]);
      }
      groups_sent_[i] = stream.groups_version();
    }
    StepFold fold = std::move(stream.folds().front());
    stream.folds().pop_front();
    now_ns_ = std::max(now_ns_, fold.end_ns);
    if (on_step_) on_step_(stream.rank(), fold);
    engine_.Add(stream.rank(), std::move(fold), now_ns_);
    if (stream.folds().empty() && !stream.ended()) {
      waiting_.push_back(i);
    } else {
      Enqueue(i);
    }
    ++added_;
    // This is about once a step.
    if (added_ >= advance_at_) AdvanceEngine();
  }
}

void FoldMerge::AdvanceEngine() {
  engine_.Advance(now_ns_);
  advance_at_ = added_ + heads_.size() + waiting_.size();
  std::erase_if(ended_, [this](const Ended& ended) {
    bool gone = added_ >= ended.gone_at && now_ns_ >= ended.time_ns + kGoneAfterNs;
    if (gone) engine_.RemoveRank(ended.rank);
    return gone;
  });
}

}  // namespace taskd::readers
