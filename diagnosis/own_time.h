// What each rank does by itself, compared with its peers: computing, loading data, saving checkpoints.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "diagnosis/late.h"
#include "diagnosis/layout.h"
#include "diagnosis/measured.h"
#include "diagnosis/own_view.h"
#include "diagnosis/stats.h"
#include "diagnosis/stream.h"
#include "diagnosis/weather.h"
#include "diagnosis/work.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class OwnTime {
 public:
  using Mode = OwnMode;

  // Standard deviation of one observation, and of means.
  struct NoiseLevel {
    double one = 0;  // 0: not known
    ScaleSigmas scales{};
  };
  struct Noise {
    NoisePool steps;
    ScaleNoise blocks;
    NoisePool ranks;   // how far ranks are apart: stands in for blocks until there are some
    NoiseLevel level;  // as of the last Update()

    bool IsYoung() const { return level.scales[0] == 0; }
    // How far (ln) a rank is from its peers: twice the variance, as the difference of two steps has.
    void AddApart(int rank, double d) {
      if (IsYoung()) ranks.Add(rank, std::sqrt(2.0) * std::abs(d));
    }
    void Update() {
      steps.Update();
      blocks.Update(steps.sigma());
      if (IsYoung()) ranks.Update();
      level = {steps.sigma(), blocks.sigmas()};
    }
  };

  // What a rank waits for a CPU in a step while it is slower, and its own time in the same steps; against its peers'.
  struct CpuWait {
    Measured wait, own;

    // The part of what own time is longer by that is waiting for a CPU, beyond what its peers would wait who did as much:
    // where others run, too, who has more to do also waits for longer. Empty: not known.
    std::optional<double> Share() const;
  };

  // What a rank takes by itself without what it waits for a CPU: a neighbour's work shows in that much less.
  struct OnCpu {
    Stream own;
    NoiseLevel noise;  // of its peers'
    double last_deviation = 0;
    bool has_last_deviation = false;
    int missed = 0;  // steps in a row of which nothing is known
  };

  // How a deviation looks: means over its steps.
  struct Look {
    int profiled = 0;  // steps
    int deviating = 0;
    double forward_share = 0;  // of the excess: what the forward ranges hold
    // The same of large excesses, and its mean square: where a pause is, all of it is.
    double large_share = 0, large_square = 0;
    int large = 0;
    int profiled_busy = 0;  // steps that said what the device computed
    double busy_share = 0;  // of the excess: that the device computed
    CpuWait cpu_wait;
    double tail_ratio = 1;         // of the time after the last operation to its peers'
    double tail_share = 0;         // of the excess: what lies there
    double longest_gap_share = 0;  // of the excess: the longest gap

    // 1: the excess of a step lies in forward or outside of it, by turns; 0: always as much here as there, or not known.
    double scatter() const;
  };

  // One rank, over the steps judged.
  struct Rank {
    Stream own;
    Late<OnCpu> on_cpu;  // of a few that compute on CPUs, where it is known what they wait
    Stream data;
    LateStream checkpoint;
    LateStream forward;        // mode kAll only
    double own_ns = 0;         // of the last step, as if it had its peers' work; 0: no data
    double actual_own_ns = 0;  // with the work that it had
    double own_reference_ns = 0;
    double average_own_ns = 0;  // exponential mean of own_ns
    double data_ns = 0;
    double checkpoint_ns = 0;
    double forward_level_ns = 0;  // while nothing deviates
    Late<Look> look;              // while something may
    // Issue latency: what it usually is (0: no device records), and what it is now as a share of that or of the peers'.
    double issue_level_ns = 0;
    double issue_ratio = 1;
    int issues_seen = 0;
    uint32_t process_id = 0;
    double forward_reference_ns = 0, last_forward = 0;
    double last_deviation = 0;
    bool has_last_deviation = false;
    bool has_device = false;  // whose times were in its steps
    Late<NoiseLevel> noise;   // of its peers' own times; of one of few

    // What it takes without waiting, while that is raised; else null. Who waits less than its peers is not slow for that.
    const Stream* on_cpu_rise() const {
      const Stream& stream = on_cpu->own;
      return stream.raised() && stream.mean_excess() > 0 ? &stream : nullptr;
    }
    // Where it shows that the rank is slow by itself, if that is so.
    const Stream& slow() const {
      const Stream* other = own.raised() ? nullptr : on_cpu_rise();
      return other == nullptr ? own : *other;
    }
    // Its times are other ones from now on: the past level is learned anew.
    void Rebase();
    // They cannot be known any more: whether it is slow is learned anew, too.
    void Drop();
    // What is observed next has no step before it.
    void BreakOff();
  };

  // A step that is judged begins. Its folds, by rank, here and below.
  // `is_silent`: nobody marks communication any more, not only in this step.
  void BeginStep(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, bool is_silent = false);
  // Each of them; it stays where it is until Observe().
  void Take(const Layout& layout, int rank, const StepFold& fold);
  // `arl_factor`: observations of one stream that a false alarm may take, per stream. `period_ns`: the job's.
  void Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step, double period_ns,
               double arl_factor);
  // Only the savings of a step. Observe() does that, too.
  void ObserveCheckpoints(const std::vector<std::pair<int, StepFold>>& folds, int64_t step, double period_ns);
  // The layout has changed: who is whose peer is new; the ranks' own past stays.
  void Regroup(const Layout& layout);
  void ResetRank(int rank);

  const Rank& rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Rank& rank(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Mode mode() const { return mode_; }
  const Work& work() const { return work_; }
  // Steps since any rank was compared with its peers, or a class with its past.
  int idle_steps() const { return idle_steps_; }

  // A whole class against its own past: for ranks without peers.
  struct Class {
    Stream drift;
    double level = 0;  // log ns of the own past
    int seen = 0;
    double last = 0;
    bool has_last = false;
    double reference_ns = 0;          // of the last step
    double wait_ns = 0;               // likewise: that its ranks waited for a CPU, median; 0: not known of all
    double wait_level_ns = 0;         // of the own past
    double average_reference_ns = 0;  // exponential mean
    int present = 0;
    Noise noise;
  };
  const std::vector<Class>& classes() const { return classes_; }
  // What everybody does has changed, by plan: the past is learned anew.
  void RelearnLevels();
  // Median over classes of how much more they do than they used to (log).
  double common_shift() const { return common_shift_; }
  // Likewise, how much of that is waiting for a CPU: as a share of what they used to take. 0: not known, too.
  double common_wait_shift() const { return common_wait_shift_; }
  // Loading or saving that is slower everywhere than it used to be.
  const Stream& common_data() const { return common_data_; }
  const Stream& common_checkpoint() const { return common_checkpoint_; }
  // Steps from one saving to the next.
  double checkpoint_interval() const { return static_cast<double>(checkpoint_interval_); }
  // Of the last step: of all sums but those of saving.
  const Thresholds& thresholds() const { return thresholds_; }
  // Of own times.
  const Weather& weather() const { return weather_; }
  const Weather& forward_weather() const { return forward_weather_; }  // the same of the forward ranges alone
  const Weather& on_cpu_weather() const { return on_cpu_weather_; }    // of Rank::on_cpu
  const Gusts& gusts() const { return gusts_; }                        // of own times
  // As Stream::SmallestRise of the own time (log) of a rank, one of so many `peers`, and of its data loading (share of the
  // step); `noise`: of one step.
  struct Fineness {
    double rise = 0;
    double noise = 0;
  };
  std::optional<Fineness> OwnFineness(const Layout& layout, int rank, size_t peers, int steps) const;
  // Of the time that it takes while it has a CPU.
  std::optional<Fineness> OnCpuFineness(int rank, int steps) const;
  std::optional<Fineness> DataFineness(int rank, int steps) const;
  // How evenly ranks take turns at being the slowest: 0 if it is always the same one, 1 if each is as often as any other.
  // The entropy of how often each was the slowest, as a share of the most that it can be.
  double rotation() const;

 private:
  // Of all classes, in one step.
  struct Slowest {
    int rank = -1;
    double deviation = 0;
  };

  void ObserveOwn(const Layout& layout, int64_t step, const Thresholds& h);
  void ObserveData(const std::vector<std::pair<int, StepFold>>& folds, int64_t step, double period,
                   const Thresholds& h);
  void ObserveForward(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step,
                      const Thresholds& h);
  void ObservePeers(const PeerViews& peers, Class& peer_class, int64_t step, const Thresholds& h, Slowest& slowest);
  void ObserveOnCpu(const PeerViews& peers, int64_t step, const Thresholds& h);
  static const NoiseLevel& NoiseOfMany(Noise& noise);
  // `level`: the rank's, whose stream has had so many `observations`.
  static const NoiseLevel& NoiseOfFew(int rank, size_t peers, int observations, Noise& noise, NoiseLevel& level);
  // `forward_own_ns`: the peers' own time in forward; below 0: not worked out yet.
  void Profile(const PeerViews& peers, const OwnView& own, int64_t step, double& forward_own_ns, Rank& rank);
  void ObserveIssues(const std::vector<OwnView>& owns);
  void CountSlowest(const Slowest& slowest);
  void ForgetNoise(const std::vector<OwnView>& views, Class& peers);
  void FollowMode(Mode mode, bool is_silent);
  void ChangeMode(Mode mode);
  // Mean over the ranks; 0: not known of all.
  static double WaitNsOf(const std::vector<OwnView>& views);
  void ObserveClasses(int64_t step, const Thresholds& h);

  std::vector<Rank> ranks_;
  std::vector<Class> classes_;
  std::vector<std::vector<OwnView>> views_;  // of the step under way, by class
  Work work_;
  Noise shared_noise_;  // of small classes
  Noise class_noise_;
  Noise data_noise_;
  Noise forward_noise_;
  Noise on_cpu_noise_;
  NoisePool checkpoint_noise_;
  Weather weather_, forward_weather_, on_cpu_weather_;
  Gusts gusts_;
  Thresholds thresholds_{};  // of the last step
  double period_ns_ = 0;     // the job's
  Mode mode_ = Mode::kNone;
  int idle_steps_ = 0;
  int silent_steps_ = 0;  // the last ones, without operations on most ranks
  double common_shift_ = 0;
  double common_wait_shift_ = 0;
  Stream common_data_;
  Stream common_checkpoint_;
  double data_level_ns_ = 0;
  int data_seen_ = 0;
  double checkpoint_level_ = 0;
  int checkpoints_seen_ = 0;
  int64_t last_checkpoint_step_ = -1;
  int64_t checkpoint_interval_ = 20;  // until two were seen
  std::vector<uint16_t> slowest_;     // how often a rank was the slowest of all
  int slowest_steps_ = 0;
};

}  // namespace taskd::diagnosis
