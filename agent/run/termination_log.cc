#include "agent/run/termination_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "common/utf8.h"

namespace taskd::run {
namespace {

constexpr size_t kMaxErrorBytes = 1500;
constexpr size_t kMaxLineBytes = 300;
constexpr size_t kMaxOtherFailures = 8;

std::string Line(const EqualFailures& equal) {
  return absl::StrCat(DescribeRanks(equal), ": ", Printable(process::DescribeEnd(equal.front()->exit)));
}

std::string Error(const std::string& message) {
  std::string text;
  for (absl::string_view line : absl::StrSplit(message, '\n')) {
    if (text.size() > kMaxErrorBytes) break;
    absl::StrAppend(&text, Printable({line.data(), line.size()}, kMaxErrorBytes), "\n");
  }
  return text;
}

std::string Others(const std::vector<RankFailure>& failures) {
  std::string text;
  size_t lines = 0, left = failures.size() - 1;
  for (const EqualFailures& equal : OtherFailures(failures)) {
    if (lines == kMaxOtherFailures) return absl::StrCat(text, "and ", left, " more\n");
    absl::StrAppend(&text, lines++ == 0 ? "Other failures:\n" : "", Line(equal), "\n");
    left -= equal.size();
  }
  return text;
}

}  // namespace

std::string TerminationMessage(const std::string& line, const std::vector<RankFailure>& failures) {
  std::string last = line.empty() ? "" : Printable(line, kMaxErrorBytes) + "\n";
  if (failures.empty()) return last;
  const process::WorkerExit& exit = failures[0].exit;
  const std::string head = absl::StrCat("First failure: ", Line({&failures[0]}), "\n",
                                        exit.error_message.empty() ? "" : Error(exit.error_message));
  const std::string tail = absl::StrCat(Others(failures), last);
  std::vector<std::string> lines;  // the newest first
  const std::string title = "Its last lines on stderr:\n";
  size_t bytes = head.size() + title.size() + tail.size();
  for (auto one = exit.last_lines.rbegin(); one != exit.last_lines.rend(); ++one) {
    lines.push_back(absl::StrCat("| ", Printable(*one, kMaxLineBytes), "\n"));
    bytes += lines.back().size();
    if (bytes <= kMaxTerminationLogBytes) continue;
    lines.pop_back();
    break;
  }
  std::string text = head;
  if (!lines.empty()) text += title;
  for (auto one = lines.rbegin(); one != lines.rend(); ++one) text += *one;
  text += tail;
  CutUtf8(&text, kMaxTerminationLogBytes);
  return text;
}

void WriteTerminationLog(const std::string& text, const std::string& path) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_WRONLY);
  if (!file.ok() || ::ftruncate(file->get(), 0) != 0) return;
  WriteAll(file->get(), CutUtf8(text, kMaxTerminationLogBytes));
}

}  // namespace taskd::run
