// Steps of all lives of a job in one count. A job that is started again goes on from the step of its checkpoint, so its
// step numbers go back; what is learned over steps counts on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>

namespace taskd::diagnosis {

class Lives {
 public:
  static constexpr size_t kMostLives = 1000;  // that are remembered

  // The next judged step's place in the count: within a life places are as far apart as the steps' numbers. `begins`:
  // it is the first one of a life. One that does not come after the last is so, too.
  int64_t Add(int64_t step, bool begins) {
    begins = begins || lives_.empty() || step + lives_.back().offset <= last_;
    if (begins) lives_.push_back({last_ + 1, last_ + 1 - step});
    if (lives_.size() > kMostLives) lives_.pop_front();
    return last_ = step + lives_.back().offset;
  }

  // Of the present life.
  int64_t first() const { return lives_.empty() ? 0 : lives_.back().first; }
  int64_t PlaceOf(int64_t step) const { return lives_.empty() ? step : step + lives_.back().offset; }
  // Of the life that the place is in: its first place, and the number of the step.
  int64_t FirstOf(int64_t place) const { return lives_.empty() ? place : LifeOf(place).first; }
  int64_t StepAt(int64_t place) const { return lives_.empty() ? place : place - LifeOf(place).offset; }

 private:
  struct Life {
    int64_t first;   // place
    int64_t offset;  // of a place to its step
  };
  const Life& LifeOf(int64_t place) const {
    const auto after = std::upper_bound(lives_.begin(), lives_.end(), place,
                                        [](int64_t value, const Life& life) { return value < life.first; });
    return after == lives_.begin() ? *after : *std::prev(after);
  }

  std::deque<Life> lives_;
  int64_t last_ = -1;
};

}  // namespace taskd::diagnosis
