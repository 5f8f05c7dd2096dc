// Names of functions from the ELF files that a process has mapped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace taskd::stacks {

// One mapping of a file, from /proc/PID/maps.
struct ModuleMapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t file_offset = 0;
  std::string path;  // "/usr/lib/.../libc.so.6", "[vdso]"
};

// Executable mappings with a name, by address. Empty where the process has gone.
std::vector<ModuleMapping> ReadMappings(pid_t pid);

// Names addresses of one process. Symbols come from .symtab where the file has it, else from .dynsym; files are never
// believed: a broken one has no names. Not thread-safe.
class AddressNamer {
 public:
  explicit AddressNamer(pid_t pid) : pid_(pid), mappings_(ReadMappings(pid)) {}

  // Names all at once, as each file is read once for all of them. `return_address`: the call before it counts, not the
  // instruction at it.
  struct Address {
    uint64_t address = 0;
    bool return_address = true;
  };
  // address -> "poll+0x4f (libc.so.6)", "0x1234 (libfoo.so)" where the file does not say, "0x7f0012345678" outside of
  // all files.
  std::map<uint64_t, std::string> Name(const std::vector<Address>& addresses) const;

 private:
  pid_t pid_;
  std::vector<ModuleMapping> mappings_;
};

}  // namespace taskd::stacks
