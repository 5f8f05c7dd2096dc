// An ELF file with one segment and two functions, as bytes.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace taskd::testing {

struct ElfFile {
  static constexpr uint64_t kBase = 0x1000;  // what the symbols call the file's begin

  Elf64_Ehdr header;
  Elf64_Phdr segment;
  Elf64_Shdr sections[3];
  Elf64_Sym symbols[3];
  char names[4096];

  std::string_view bytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
};

// The first function takes the bytes 0 to 0xff of the file, the second one the next 0x100.
inline ElfFile MakeElfFile(std::string_view first, std::string_view second) {
  ElfFile file = {};
  memcpy(file.header.e_ident, ELFMAG, SELFMAG);
  file.header.e_ident[EI_CLASS] = ELFCLASS64;
  file.header.e_phentsize = sizeof(Elf64_Phdr);
  file.header.e_phnum = 1;
  file.header.e_phoff = offsetof(ElfFile, segment);
  file.header.e_shentsize = sizeof(Elf64_Shdr);
  file.header.e_shnum = 3;
  file.header.e_shoff = offsetof(ElfFile, sections);
  file.segment.p_type = PT_LOAD;
  file.segment.p_vaddr = ElfFile::kBase;
  file.segment.p_filesz = sizeof(file);
  file.sections[1].sh_type = SHT_SYMTAB;
  file.sections[1].sh_entsize = sizeof(Elf64_Sym);
  file.sections[1].sh_link = 2;
  file.sections[1].sh_offset = offsetof(ElfFile, symbols);
  file.sections[1].sh_size = sizeof(file.symbols);
  file.sections[2].sh_offset = offsetof(ElfFile, names);
  file.sections[2].sh_size = sizeof(file.names);
  size_t end = 1;
  for (int i = 1; i < 3; ++i) {
    Elf64_Sym& symbol = file.symbols[i];
    symbol.st_name = static_cast<Elf64_Word>(end);
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_shndx = 1;
    symbol.st_value = ElfFile::kBase + static_cast<uint64_t>(i - 1) * 0x100;
    symbol.st_size = 0x100;
    end += (i == 1 ? first : second).copy(file.names + end, sizeof(file.names) - 1 - end) + 1;
  }
  return file;
}

// f(B<int, int>, B<B<int, int>, B<int, int> >, ...): each argument twice as long as the one before it.
inline std::string ExplodingName(int arguments) {
  const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string name = "_Z1f1BIiiE";
  for (int i = 0; i < arguments; ++i) {
    const std::string before = std::string("S") + digits[i] + "_";
    name.append("S_I").append(before).append(before).append("E");
  }
  return name;
}

}  // namespace taskd::testing
