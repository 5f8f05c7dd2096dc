// libFuzzer begins with the seeds of the target, and keeps what it finds beside the program: PROGRAM.corpus. Inputs
// that break a promise become PROGRAM.crash-…, which the program reproduces when it is given the file's name.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static std::vector<std::string> arguments(*argv, *argv + *argc);
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with('-')) return 0;  // somebody gives files or folders
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string corpus = program.string() + ".corpus";
  std::filesystem::create_directories(corpus);
  int number = 0;
  for (const std::string& seed : FuzzSeeds()) {
    std::ofstream(corpus + "/seed" + std::to_string(number++), std::ios::binary) << seed;
  }
  arguments.push_back("-artifact_prefix=" + program.string() + ".");
  arguments.push_back(corpus);
  static std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  *argc = static_cast<int>(arguments.size());
  *argv = pointers.data();
  return 0;
}
