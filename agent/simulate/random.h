// Random numbers by counter: the same (seed, step, operation, rank) gives the same number, whatever else was drawn. So
// a replay without a fault meets the same noise as the one with it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace taskd::simulate {

// SplitMix64's finaliser: every bit of the result depends on every bit of `x`.
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(a ^ (b * 0xD6E8FEB86659FD93u)); }
inline uint64_t Mix(uint64_t a, uint64_t b, uint64_t c) { return Mix(Mix(a, b), c); }

// [0, 1)
inline double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }
inline double Uniform(uint64_t bits, double low, double high) { return low + (high - low) * Uniform(bits); }

// Standard normal, by Box and Muller: for what is drawn once a step or once a job.
inline double Normal(uint64_t bits) {
  const double u = Uniform(Mix(bits, 1)), v = Uniform(Mix(bits, 2));
  return std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * M_PI * v);
}

// A distribution as 4,096 equally likely values: one load an operation instead of a logarithm.
class Quantiles {
 public:
  static constexpr uint64_t kSize = 4096;

  // Median 1.
  static Quantiles Lognormal(double sigma) {
    // Once a process: it costs more than a short job.
    static const std::array<float, kSize>& normal = *new std::array<float, kSize>([] {
      std::array<float, kSize> values;
      for (uint64_t i = 0; i < kSize; ++i) values[i] = static_cast<float>(InverseNormal((i + 0.5) / kSize));
      return values;
    }());
    Quantiles table;
    for (uint64_t i = 0; i < kSize; ++i) table.values_[i] = std::exp(static_cast<float>(sigma) * normal[i]);
    return table;
  }
  static Quantiles Exponential(double mean) {
    Quantiles table;
    for (uint64_t i = 0; i < kSize; ++i) table.values_[i] = static_cast<float>(-mean * std::log((i + 0.5) / kSize));
    return table;
  }

  float operator[](uint64_t bits) const { return values_[bits % kSize]; }

 private:
  static double InverseNormal(double p) {
    double low = -8, high = 8;
    for (int i = 0; i < 50; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / M_SQRT2) < p ? low : high) = middle;
    }
    return low;
  }

  std::array<float, kSize> values_{};
};

}  // namespace taskd::simulate
