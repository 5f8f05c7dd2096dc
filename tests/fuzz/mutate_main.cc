// Runs a fuzz target over random mutations of its seeds: `target COUNT [SEED]`. The same seed gives the same inputs.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/fuzz/fuzz_target.h"

int main(int argc, char** argv) {
  const long count = argc > 1 ? atol(argv[1]) : 20000;
  std::mt19937_64 random(argc > 2 ? strtoull(argv[2], nullptr, 10) : 1);
  const std::vector<std::string> seeds = FuzzSeeds();
  for (long i = 0; i < count; ++i) {
    std::string input = seeds[random() % seeds.size()];
    for (uint64_t edits = random() % 8; edits > 0 && !input.empty(); --edits) {
      const size_t at = random() % input.size();
      switch (random() % 5) {
        case 0:
          input[at] = static_cast<char>(random());
          break;
        case 1:
          input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
          break;
        case 2:
          input.erase(at, random() % 16);
          break;
        case 3:
          input.insert(at, random() % 16, static_cast<char>(random()));
          break;
        default:
          input += input.substr(at, 64);
      }
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  printf("%ld inputs\n", count);
  return 0;
}
