#include "agent/stacks/elf_symbols.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "agent/stacks/testing/elf_file.h"
#include "common/unique_fd.h"

namespace taskd::stacks {
namespace {

using testing::ElfFile;
using ::testing::EndsWith;
using ::testing::StartsWith;

// Names of the files' bytes 0x10 and 0x110, once this process has mapped it.
std::vector<std::string> NamesIn(const ElfFile& file) {
  char path[] = "/tmp/taskd_elf_test_XXXXXX";
  UniqueFd fd(mkstemp(path));
  EXPECT_EQ(write(fd.get(), &file, sizeof(file)), static_cast<ssize_t>(sizeof(file)));
  void* memory = mmap(nullptr, sizeof(file), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd.get(), 0);
  EXPECT_NE(memory, MAP_FAILED);
  const auto begin = reinterpret_cast<uint64_t>(memory);
  std::map<uint64_t, std::string> names = AddressNamer(getpid()).Name({{begin + 0x10, false}, {begin + 0x110, false}});
  munmap(memory, sizeof(file));
  unlink(path);
  return {names[begin + 0x10], names[begin + 0x110]};
}

TEST(AddressNamer, NamesFunctions) {
  const std::vector<std::string> names = NamesIn(testing::MakeElfFile("main", "_ZN5taskd1fEi"));
  EXPECT_THAT(names[0], StartsWith("main+0x10 (taskd_elf_test_"));
  EXPECT_THAT(names[1], StartsWith("taskd::f(int)+0x10 (taskd_elf_test_"));
}

TEST(AddressNamer, CutsLongNames) {
  const std::vector<std::string> names =
      NamesIn(testing::MakeElfFile(testing::ExplodingName(8), std::string(999, 'f')));
  EXPECT_THAT(names[0], StartsWith("f(B<int, int>, B<B<int, int>, B<int, int> >, "));
  for (const std::string& name : names) {
    EXPECT_LT(name.size(), 300u);
    EXPECT_THAT(name.substr(0, name.find('+')), EndsWith("..."));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their own memory has no limit
TEST(AddressNamer, ANameDoesNotTakeAllMemory) {
  const std::string name = testing::ExplodingName(34);  // of 16 GiB
  const auto look = [&name] {
    const rlimit limit = {size_t{512} << 20, size_t{512} << 20};
    setrlimit(RLIMIT_AS, &limit);
    const std::vector<std::string> names = NamesIn(testing::MakeElfFile(name, "main"));
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const bool small = usage.ru_maxrss < 128 * 1024;  // KiB
    exit(small && names[0].starts_with("_Z1f1BIiiE") && names[1].starts_with("main+0x10") ? 0 : 1);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace taskd::stacks
