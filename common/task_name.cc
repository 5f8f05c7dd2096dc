#include "common/task_name.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

constexpr size_t kMaxPlainBytes = 100;

}  // namespace

std::string PlainFileName(const std::string& name) {
  std::string plain = name.substr(0, kMaxPlainBytes);
  for (char& c : plain) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '-';
  }
  return plain;
}

std::string DefaultTaskName(int64_t unix_s) { return absl::StrCat("default_task_id_", unix_s); }

}  // namespace taskd
