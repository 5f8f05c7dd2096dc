#include "agent/run/hang_follower.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"

namespace taskd::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRasNodes = 3;
constexpr std::chrono::seconds kRasPatience{15};  // with one node

// Between two looks. At first whether RAS answers is to be known soon; dumps may take minutes.
std::chrono::milliseconds PauseAfter(int looks) {
  constexpr int kQuick = 10, kSteady = 25;
  if (looks < kQuick) return std::chrono::milliseconds(200);
  return std::chrono::seconds(std::clamp(looks - kSteady, 1, 10));
}

// What a report would say.
std::string Summary(const evidence::Finding& finding) {
  return absl::StrCat(TextOf(finding), "\n", absl::StrJoin(finding.notes, "\n"), "\n", finding.sources.size(), " ",
                      finding.more_sources);
}

bool IsEmpty(const evidence::Finding& finding) {
  return !finding.hang && finding.notes.empty() && finding.sources.empty();
}

}  // namespace

HangFollower::HangFollower(const Options& options, Look look, Report report)
    : options_(options),
      look_(std::move(look)),
      report_(std::move(report)),
      ras_is_over_(!options.asks_ras),
      thread_([this] { Follow(); }) {}

HangFollower::~HangFollower() {
  Stop();
  thread_.join();
}

void HangFollower::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void HangFollower::OnEvidence(int hang, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (hang == options_.hang && !text.empty()) texts_.push_back(text);
}

void HangFollower::AwaitRas(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return stopping_ || ras_is_over_; });
}

void HangFollower::Follow() {
  const auto begin = Clock::now();
  evidence::EvidenceBook book;
  std::string reported;
  int ras_node = 0;
  auto ras_since = begin;
  std::set<int> ras_tried;  // launchers
  std::unique_lock lock(mutex_);
  for (int looks = 0; !stopping_; ++looks) {
    LookMessage message;
    message.hang = options_.hang;
    message.idle_ms =
        options_.idle_ms + std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
    message.asks_ras = ras_is_over_ ? -1 : ras_node;
    lock.unlock();
    look_(message);
    lock.lock();
    if (changed_.wait_for(lock, PauseAfter(looks), [this] { return stopping_; })) return;
    std::vector<std::string> texts = std::exchange(texts_, {});
    lock.unlock();

    bool ras_answered = false;
    bool ras_failed = Clock::now() - ras_since >= kRasPatience;
    for (const std::string& text : texts) {
      absl::StatusOr<evidence::NodeEvidence> node = evidence::DecodeEvidence(text);
      if (!node.ok()) {
        spdlog::warn("what a node tells of the hang is left out: {}", node.status().message());
        continue;
      }
      if (node->ras && ras_tried.insert(node->first_rank).second) {
        ras_answered |= node->ras->has_answered;
        ras_failed |= !node->ras->has_answered;
      }
      book.Add(*std::move(node));
    }
    if (!texts.empty()) {
      const evidence::Finding finding = book.Judge();
      if (std::string now = Summary(finding); !IsEmpty(finding) && now != reported) {
        reported = std::move(now);
        report_(finding);
      }
    }
    lock.lock();
    if (ras_is_over_) continue;
    if (ras_failed) {
      ++ras_node;
      ras_since = Clock::now();
    }
    ras_is_over_ = ras_answered || ras_node >= std::min(options_.nodes, kRasNodes);
    if (ras_is_over_) changed_.notify_all();
  }
}

}  // namespace taskd::run
