// What was measured while a deviation lasted, as a verdict shows it.
#pragma once

#include <cstdint>

namespace taskd::diagnosis {

// Plain means over the last steps of a deviation, of which the first and the last one are known: whoever has the marks of
// these steps can work them out. At least the last kBlock steps count, at most twice as many, and all that were there at
// the begin.
class Measured {
 public:
  static constexpr int kBlock = 64;

  // Means of `steps` steps, in ns.
  struct Means {
    int64_t first_step = -1, last_step = -1;
    int steps = 0;
    double excess = 0;     // that is lost
    double reference = 0;  // what it would have taken

    double value() const { return excess + reference; }
    void Add(const Means& more);
  };

  // A deviation begins with what is known of its first steps; all else is forgotten.
  void Begin(const Means& known);
  // `may_be_over`: the deviation may have ended before this step. The step counts once it turns out that it had not.
  void Add(int64_t step, double excess, double reference, bool may_be_over);
  Means means() const;

 private:
  Means before_;  // the last full block, or all until it was full
  Means now_;     // since then
  Means held_;    // of steps that may be after the end
};

}  // namespace taskd::diagnosis
