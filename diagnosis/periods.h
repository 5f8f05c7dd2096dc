// How long the last steps of the job took, and when they ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace taskd::diagnosis {

class Periods {
 public:
  static constexpr size_t kHistory = 600;  // steps
  // What LostSince answers where there is nothing to compare with.
  static constexpr double kCannotTell = 1e300;

  // A judged step. `end_ns`: by the reference node's clock.
  void Add(int64_t step, double period_ns, uint64_t end_ns);
  // Somebody is accused of being slow in the last one.
  void MarkSlow(bool slow);

  // Median of the last ten; 0 of none.
  double recent_ns() const { return recent_ns_; }
  // How much longer the last steps from `onset` on are than the steps before it in which nobody was slow, ns, and the
  // standard error of that, from how far those steps are apart.
  struct Lost {
    double ns = kCannotTell;
    double error_ns = 0;
  };
  Lost LostSince(int64_t onset) const;
  // Mean of the steps first..last, as far back as is remembered; 0 of none.
  double MeanNs(int64_t first, int64_t last) const;
  // From the begin of `step`, or of the oldest that is remembered, to the end of the last one, ns; 0: it is not there yet.
  double TimeSince(int64_t step) const;
  // The end of `step`, or of the next one that was judged; 0: there is none.
  uint64_t EndNs(int64_t step) const;

 private:
  struct Period {
    int64_t step;
    double ns;
    uint64_t end_ns;
    bool slow = false;
  };

  std::deque<Period> history_;
  double recent_ns_ = 0;
};

}  // namespace taskd::diagnosis
