// Runs a fuzz target over random mutations of its seeds, where there is no libFuzzer:
//   target [-runs=COUNT] [-max_total_time=SECONDS] [-seed=SEED]
// The same seed gives the same inputs. With FILE... it runs those instead, to reproduce.
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

#include "tests/fuzz/fuzz_target.h"

namespace {

void Run(const std::string& input) {
  // Of its own size, so that the sanitizer sees a read beyond it.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::string Mutate(std::string input, std::mt19937_64& random) {
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
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  long count = 0, seconds = 0;
  uint64_t random_seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const char* value = argv[i] + argument.find('=') + 1;
    if (argument.starts_with("-runs=")) {
      count = atol(value);
    } else if (argument.starts_with("-max_total_time=")) {
      seconds = atol(value);
    } else if (argument.starts_with("-seed=")) {
      random_seed = strtoull(value, nullptr, 10);
    } else if (argument.starts_with('-')) {
      fprintf(stderr, "%s: unknown argument %s; there are -runs=, -max_total_time=, -seed= and files\n", argv[0],
              argv[i]);
      return 2;
    } else {
      files.push_back(argument);
    }
  }
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    Run(std::string(std::istreambuf_iterator<char>(stream), {}));
  }
  if (!files.empty()) return 0;
  if (count == 0) count = seconds > 0 ? LONG_MAX : 20000;
  const std::chrono::seconds budget(seconds);
  const auto end = std::chrono::steady_clock::now() + budget;
  std::mt19937_64 random(random_seed);
  const std::vector<std::string> seeds = FuzzSeeds();
  long done = 0;
  for (; done < count && (seconds == 0 || std::chrono::steady_clock::now() < end); ++done) {
    Run(Mutate(seeds[random() % seeds.size()], random));
  }
  printf("%ld inputs\n", done);
  return 0;
}
