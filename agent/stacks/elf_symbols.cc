#include "agent/stacks/elf_symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/unique_fd.h"
#include "common/utf8.h"

namespace taskd::stacks {
namespace {

constexpr size_t kMaxMappings = 65536;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxMangledBytes = 4096;
// Two references double a part, so a name of 300 bytes can stand for more than there is memory. With so many it is at
// most some 30 MB; what has more stays as it is.
constexpr size_t kMaxBackReferences = 24;

// A file of the process, mapped for reading; every access is checked against its size.
class ElfFile {
 public:
  static std::optional<ElfFile> Open(const std::string& path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat status;
    if (fd.get() < 0 || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
      return std::nullopt;
    }
    auto bytes = static_cast<size_t>(status.st_size);
    void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (memory == MAP_FAILED) return std::nullopt;
    ElfFile file(memory, bytes);
    const auto* header = file.At<Elf64_Ehdr>(0);
    if (header == nullptr || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_phentsize != sizeof(Elf64_Phdr)) {
      return std::nullopt;
    }
    return file;
  }

  // The address that the file's symbols use for a place in the file.
  std::optional<uint64_t> VirtualAddress(uint64_t offset) const {
    const auto* header = At<Elf64_Ehdr>(0);
    const auto* segments = At<Elf64_Phdr>(header->e_phoff, header->e_phnum);
    if (segments == nullptr) return std::nullopt;
    for (int i = 0; i < header->e_phnum; ++i) {
      const Elf64_Phdr& segment = segments[i];
      if (segment.p_type == PT_LOAD && offset >= segment.p_offset && offset - segment.p_offset < segment.p_filesz) {
        return offset - segment.p_offset + segment.p_vaddr;
      }
    }
    return std::nullopt;
  }

  // Calls back for each function: (value, size, name).
  template <typename Callback>
  void ForEachFunction(const Callback& callback) const {
    const auto* header = At<Elf64_Ehdr>(0);
    if (header->e_shentsize != sizeof(Elf64_Shdr)) return;
    const auto* sections = At<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (sections == nullptr) return;
    const Elf64_Shdr* table = nullptr;
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type == SHT_SYMTAB || (sections[i].sh_type == SHT_DYNSYM && table == nullptr)) {
        table = &sections[i];
      }
    }
    if (table == nullptr || table->sh_entsize != sizeof(Elf64_Sym) || table->sh_link >= header->e_shnum) return;
    const Elf64_Shdr& strings = sections[table->sh_link];
    const size_t count = table->sh_size / sizeof(Elf64_Sym);
    const auto* symbols = At<Elf64_Sym>(table->sh_offset, count);
    const auto* names = At<char>(strings.sh_offset, strings.sh_size);
    if (symbols == nullptr || names == nullptr) return;
    for (size_t i = 0; i < count; ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const int type = ELF64_ST_TYPE(symbol.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF ||
          symbol.st_name >= strings.sh_size) {
        continue;
      }
      const char* name = names + symbol.st_name;
      callback(symbol.st_value, symbol.st_size,
               std::string_view(name, strnlen(name, strings.sh_size - symbol.st_name)));
    }
  }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(const char* memory) const { munmap(const_cast<char*>(memory), bytes); }
  };
  ElfFile(void* memory, size_t bytes) : bytes_(bytes), memory_(static_cast<const char*>(memory), Unmap{bytes}) {}

  template <typename T>
  const T* At(uint64_t offset, uint64_t count = 1) const {
    if (offset > bytes_ || offset % alignof(T) != 0 || count > (bytes_ - offset) / sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(memory_.get() + offset);
  }

  size_t bytes_;
  std::unique_ptr<const char, Unmap> memory_;
};

// How often a mangled name refers to an earlier part of itself: "S_", "S2A_", "T_".
size_t BackReferences(std::string_view mangled) {
  size_t references = 0;
  bool in_reference = false;
  for (char c : mangled) {
    if (c == '_' && in_reference) ++references;
    in_reference = c == 'S' || c == 'T' || (in_reference && absl::ascii_isalnum(c) && !absl::ascii_islower(c));
  }
  return references;
}

std::string Demangle(std::string_view name) {
  std::string mangled(name.substr(0, kMaxMangledBytes));
  int status = BackReferences(mangled) <= kMaxBackReferences ? 0 : -1;
  std::unique_ptr<char, void (*)(void*)> text(
      status == 0 ? abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status) : nullptr, free);
  std::string result = status == 0 && text != nullptr ? text.get() : mangled;
  if (result.size() > kMaxNameBytes) result = CutUtf8(result, kMaxNameBytes - 3) + "...";
  return result;
}

std::string BaseName(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// An address of one module, on its way to a name.
struct Wanted {
  uint64_t place = 0;  // what the symbols call it; in the call, where that counts
  uint64_t address = 0;
  uint64_t after_call = 0;  // 1 or 0: from `place` to the address
  uint64_t best = 0;        // where the function that is nearest before it begins
  std::string_view name;
};

}  // namespace

std::vector<ModuleMapping> ReadMappings(pid_t pid) {
  std::vector<ModuleMapping> mappings;
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  for (std::string line; mappings.size() < kMaxMappings && std::getline(maps, line);) {
    std::istringstream words(line);
    ModuleMapping mapping;
    char dash;
    std::string permissions, device, inode;
    if (!(words >> std::hex >> mapping.begin >> dash >> mapping.end >> permissions >> mapping.file_offset >> device >>
          inode) ||
        permissions.size() < 3 || permissions[2] != 'x') {
      continue;
    }
    std::getline(words >> std::ws, mapping.path);
    if (!mapping.path.empty()) mappings.push_back(std::move(mapping));
  }
  return mappings;
}

std::map<uint64_t, std::string> AddressNamer::Name(const std::vector<Address>& addresses) const {
  std::map<uint64_t, std::string> names;
  std::map<std::string, std::vector<std::pair<const ModuleMapping*, Address>>> by_module;
  for (const Address& address : addresses) {
    auto after = std::upper_bound(mappings_.begin(), mappings_.end(), address.address,
                                  [](uint64_t value, const ModuleMapping& mapping) { return value < mapping.begin; });
    if (after == mappings_.begin() || address.address >= std::prev(after)->end) {
      names[address.address] = absl::StrFormat("0x%x", address.address);
    } else {
      by_module[std::prev(after)->path].emplace_back(&*std::prev(after), address);
    }
  }
  for (const auto& [path, found] : by_module) {
    const std::string module = BaseName(path);
    // Through the process's own root, which may be another container's. A file that was replaced has other names.
    std::optional<ElfFile> file;
    if (path[0] == '/' && !path.ends_with(" (deleted)")) {
      file = ElfFile::Open(absl::StrCat("/proc/", pid_, "/root", path));
      if (!file.has_value()) file = ElfFile::Open(path);
    }
    std::vector<Wanted> wanted;
    for (const auto& [mapping, address] : found) {
      const uint64_t offset = address.address - mapping->begin + mapping->file_offset;
      names[address.address] = absl::StrFormat("0x%x (%s)", offset, module);
      if (!file.has_value()) continue;
      std::optional<uint64_t> place = file->VirtualAddress(offset);
      if (place.has_value() && *place > 0) {
        const uint64_t after_call = address.return_address ? 1 : 0;
        wanted.push_back({*place - after_call, address.address, after_call, 0, {}});
      }
    }
    if (wanted.empty()) continue;
    std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.place < b.place; });
    file->ForEachFunction([&wanted](uint64_t value, uint64_t size, std::string_view name) {
      auto it = std::lower_bound(wanted.begin(), wanted.end(), value,
                                 [](const Wanted& entry, uint64_t begin) { return entry.place < begin; });
      for (; it != wanted.end() && it->place - value < size; ++it) {
        // Of several names of one function the first; of overlapping ones the inner.
        if (it->name.empty() || value > it->best) {
          it->best = value;
          it->name = name;
        }
      }
    });
    for (const Wanted& entry : wanted) {
      if (entry.name.empty()) continue;
      const uint64_t offset = entry.place + entry.after_call - entry.best;
      names[entry.address] = absl::StrFormat("%s+0x%x (%s)", Demangle(entry.name), offset, module);
    }
  }
  return names;
}

}  // namespace taskd::stacks
