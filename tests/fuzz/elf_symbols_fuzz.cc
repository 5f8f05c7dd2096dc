// Names of addresses in a mapped file that says of itself what it likes: at least the bare address, always short.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "agent/stacks/elf_symbols.h"
#include "agent/stacks/testing/elf_file.h"
#include "common/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// In /tmp, as a memory file would be "(deleted)" and not read.
class MappedFile {
 public:
  explicit MappedFile(const std::string& content) : bytes_(content.size()) {
    fd_.reset(mkstemp(path_));
    FUZZ_CHECK(fd_.valid() && write(fd_.get(), content.data(), bytes_) == static_cast<ssize_t>(bytes_));
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd_.get(), 0);
    FUZZ_CHECK(memory_ != MAP_FAILED);
  }
  ~MappedFile() {
    munmap(memory_, bytes_);
    unlink(path_);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }

 private:
  char path_[32] = "/tmp/taskd_elf_fuzz_XXXXXX";
  size_t bytes_;
  taskd::UniqueFd fd_;
  void* memory_ = nullptr;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 64 * 1024) return 0;
  const MappedFile file(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<taskd::stacks::AddressNamer::Address> addresses = {{0, true}, {UINT64_MAX, true}, {UINT64_MAX, false}};
  for (uint64_t offset = 0; offset < 4096; offset += 64)
    addresses.push_back({file.address() + offset, offset % 128 == 0});
  const std::map<uint64_t, std::string> names = taskd::stacks::AddressNamer(getpid()).Name(addresses);
  for (const taskd::stacks::AddressNamer::Address& address : addresses) {
    const auto name = names.find(address.address);
    FUZZ_CHECK(name != names.end() && !name->second.empty() && name->second.size() < 512);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  taskd::testing::ElfFile file = taskd::testing::MakeElfFile("main", "_ZN5taskd12AddressNamerC1Ei");
  const std::string whole(file.bytes());
  file.sections[1].sh_type = SHT_DYNSYM;
  const taskd::testing::ElfFile exploding = taskd::testing::MakeElfFile(taskd::testing::ExplodingName(34), "f");
  return {whole, std::string(file.bytes()), std::string(exploding.bytes()), whole.substr(0, sizeof(Elf64_Ehdr))};
}
