// How far a job is: what most of its ranks have reached, not what one of them says. For everybody who wants to know the
// job's newest step.
//
// Design:
// 1. A rank's voice is its newest step. It counts while the rank reports: not once it has gone, nor after a silence that
//    is long for this job. What more than half of the voices have reached is how far the job is; of two ranks, that is
//    what both have.
// 2. Step numbers go up within a life of the job. A rank whose number goes back (started again from a checkpoint, or it
//    counts anew in each epoch) is in the next life, which is the job's once most are there. Who is alone there while
//    the others go on (only its process was started again) is back in the present one after kAloneNs.
// 3. A rank is far ahead when it is more than kFarAhead of the job's steps beyond the job. Then its numbers mean
//    nothing; the one that it says next may.
//
// Pure: no clock. Deterministic. Not thread-safe. A report takes amortised constant time, whatever ranks report.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace taskd {

// Ranks that wait for each other are a few steps apart, local SGD some hundred.
inline constexpr int64_t kFarAhead = 1000;

class Progress {
 public:
  struct Position {
    int life = -1;  // -1: none
    int64_t step = -1;
    friend auto operator<=>(const Position&, const Position&) = default;  // NOLINT(modernize-use-nullptr): it errs
  };

  static constexpr uint64_t kPatienceNs = 10'000'000'000;  // of silence at least, else four times what is usual
  static constexpr uint64_t kAloneNs = 10'000'000'000;

  // The rank has ended a step: where that stands. `rank`: from 0, and memory is for all up to the highest one.
  // `now_ns`: any steady clock.
  Position Add(int rank, uint32_t process_id, int64_t step, uint64_t now_ns);
  // It has no voice until it reports again.
  void Remove(int rank);

  // Counts the voices, if any is new or has become silent since they were counted last. Add() does it now and then.
  void Count(uint64_t now_ns);
  // As of the last count. While all are silent it is what it was.
  const Position& reached() const { return reached_; }
  size_t voices() const { return voices_; }
  // Some are in the life after that of reached().
  bool is_restarting() const { return in_next_life_ > 0; }

  // Of the rank's newest step.
  Position at(int rank) const;
  bool IsFarAhead(const Position& position) const;

 private:
  struct Rank {
    bool has_voice = false;
    uint8_t behind = 0;  // steps in a row of a life that is over
    uint32_t process_id = 0;
    int life = -1;      // -1: it has not reported yet
    int64_t step = -1;  // the newest that was not far ahead
    Position at;
    uint64_t last_ns = 0;
    uint64_t interval_ns = 0;  // between its last two steps
    // When it went to the next life, and where the job was then.
    uint64_t left_ns = 0;
    Position left;
  };

  int life() const { return reached_.life < 0 ? 0 : reached_.life; }
  bool IsBeyond(const Position& position, int64_t stride) const;
  bool IsSilent(const Rank& rank, uint64_t now_ns) const;
  int LifeOf(Rank& rank, uint32_t process_id, int64_t step, uint64_t now_ns) const;
  void LearnStride(const Position& before);

  std::vector<Rank> ranks_;
  Position reached_;
  size_t voices_ = 0;
  size_t in_next_life_ = 0;
  uint64_t patience_ns_ = kPatienceNs;
  size_t reports_ = 0;  // since the last count
  uint64_t counted_ns_ = 0;
  // From one of the job's steps to the next, by number: the least of the last ones.
  std::array<int64_t, 8> strides_{};
  size_t strides_seen_ = 0;
  int64_t stride_ = 0;  // 0: unknown
  // Of one count; members so that their memory is kept.
  std::vector<Position> positions_;
  std::vector<uint64_t> intervals_;
};

// The same of ranks whose newest steps are known, -1 for one that has none: what more than half of those that have one
// have reached, -1 where none has.
int64_t StepOfMost(std::vector<int64_t> steps);
// `of_most`: StepOfMost() of all.
bool IsFarAhead(int64_t step, int64_t of_most);

}  // namespace taskd
