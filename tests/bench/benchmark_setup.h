// What the benchmarks of libtaskd.so do before they measure.
#pragma once

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

namespace taskd {

// Flags of the command line win over `defaults`. False: one of them is unknown, which has been reported.
inline bool SetUpBenchmarks(int argc, char** argv, std::initializer_list<const char*> defaults) {
  // Away from a proxy of this machine, which is not to read these marks.
  setenv("TASKD_SOCKET", "/nonexistent/taskd-bench.sock", 1);
  std::vector<std::string> words(defaults.begin(), defaults.end());
  std::vector<char*> arguments(argv, argv + argc);
  int position = 1;
  for (std::string& word : words) arguments.insert(arguments.begin() + position++, word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  return !benchmark::ReportUnrecognizedArguments(count, arguments.data());
}

// Whether a run has no times. Google Benchmark has it in `error_occurred`, from 1.8 on in `skipped`.
template <typename Run>
bool WasSkipped(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred;
  } else {
    return static_cast<bool>(run.skipped);
  }
}

// The segment's name goes at once: nothing is left of a benchmark that is ended.
inline void RemoveSegmentName(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  char path[256] = {};
  if (readlink(link.c_str(), path, sizeof(path) - 1) > 0) unlink(path);
}

}  // namespace taskd
