#include "common/task_name.h"

#include <unistd.h>

#include <ctime>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace taskd {
namespace {

constexpr size_t kMaxNameBytes = 100;

}  // namespace

std::string PlainFileName(const std::string& name) {
  std::string plain = name.substr(0, kMaxNameBytes);
  for (char& c : plain) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '-';
  }
  return plain;
}

std::string FreshTaskName() {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrFormat("default_task_id_%d_%s_%08x", time(nullptr), PlainFileName(host), std::random_device{}());
}

}  // namespace taskd
