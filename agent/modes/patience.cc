#include "agent/modes/patience.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace taskd::modes {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kFirstLineNs = 10 * kNsPerS;
constexpr int64_t kNextLineNs = 30 * kNsPerS;

}  // namespace

Patience::Patience(EventLoop* loop, double limit_s, std::function<void(const std::string& line)> over)
    : loop_(loop), limit_s_(limit_s), over_(std::move(over)) {}

void Patience::Begin(std::function<std::string()> missing) {
  End();
  missing_ = std::move(missing);
  over_timer_ = loop_->RunAfter(static_cast<int64_t>(limit_s_ * kNsPerS), [this] { Over(); });
  print_timer_ = loop_->RunAfter(kFirstLineNs, [this] { PrintMissing(); });
}

void Patience::End() {
  missing_ = nullptr;
  for (std::optional<EventLoop::TimerId>* timer : {&over_timer_, &print_timer_}) {
    if (*timer) loop_->Cancel(**timer);
    timer->reset();
  }
}

void Patience::PrintMissing() {
  spdlog::warn("waiting: {}", missing_());
  print_timer_ = loop_->RunAfter(kNextLineNs, [this] { PrintMissing(); });
}

void Patience::Over() {
  const std::string line = absl::StrCat(missing_(), ": waited ", limit_s_, " s (--wait-s)");
  End();
  over_(line);
}

}  // namespace taskd::modes
