// When a proxy is told which of its sets of folds have come. Each answer costs both sides a message, and a proxy works on
// without it as long as it may keep what is not confirmed (FoldSender::kMostUnconfirmed): so one answer for several.
#pragma once

#include <chrono>
#include <cstdint>

namespace taskd::manager {

// Of one stream. Not thread-safe.
class FoldReceipts {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr uint64_t kMostUnsaid = 8;        // half of what proxies keep
  static constexpr uint64_t kMostUnsaidSteps = 16;  // of one rank: on a new stream they wait again, with 64 in all
  static constexpr std::chrono::seconds kLongest{8};

  // A set has come, with so many steps of one rank.
  void Take(Time now, uint64_t steps) {
    if (taken_ == said_) since_ = now;
    ++taken_;
    unsaid_steps_ += steps;
  }
  // To be asked whenever anything has come: proxies say something every other second.
  bool due(Time now) const {
    return taken_ >= said_ + kMostUnsaid || unsaid_steps_ >= kMostUnsaidSteps ||
           (taken_ > said_ && now >= since_ + kLongest);
  }
  // How many have come; they need not be said again.
  uint64_t Say() {
    unsaid_steps_ = 0;
    return said_ = taken_;
  }

 private:
  uint64_t taken_ = 0;
  uint64_t said_ = 0;
  uint64_t unsaid_steps_ = 0;
  Time since_;  // the first of those that were not said has come
};

}  // namespace taskd::manager
