#include "common/own_process.h"

#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace taskd {
std::string TakeVariable(const char* name) {
  const std::string_view wanted(name);
  std::string value;
  bool found = false;
  char** kept = environ;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    if (!text.starts_with(wanted) || text.size() <= wanted.size() || text[wanted.size()] != '=') {
      *kept++ = *entry;
      continue;
    }
    if (!found) value = text.substr(wanted.size() + 1);  // as getenv(3)
    found = true;
    explicit_bzero(*entry, text.size());
  }
  if (found) *kept = nullptr;
  return value;
}

void CloseProcess() {
  const bool is_ranks = std::getenv(kCookieVariable) != nullptr;
  for (const char* name : {"TASKD_TOKEN", "TASKD_SECRET"}) TakeVariable(name);
  if (!is_ranks) prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace taskd
