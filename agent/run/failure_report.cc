#include "agent/run/failure_report.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "common/unique_fd.h"
#include "common/utf8.h"
#include "nlohmann/json.hpp"

namespace taskd::run {
namespace {

using nlohmann::json;

constexpr size_t kMaxShownMessage = 4000;
constexpr size_t kMaxShownLine = 500;
constexpr size_t kMaxErrorBytes = 8 << 10;
constexpr size_t kMaxLinesBytes = 16 << 10;
constexpr size_t kMaxLines = 20;
constexpr int kMaxDepth = 32;
constexpr size_t kMaxDecodedBytes = 1 << 20;
constexpr int64_t kMaxNumber = INT32_MAX;

std::string Dump(const json& value, int indent = -1) {
  // Ranks write what they like; what is no UTF-8 must not end the launcher.
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string Time(int64_t time_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3S%Ez", absl::FromUnixNanos(time_ns), absl::LocalTimeZone());
}

void AddField(std::string* text, std::string_view name, std::string_view value) {
  absl::StrAppend(text, "  ", std::string(name), ":", std::string(12 - name.size(), ' '), std::string(value), "\n");
}

// The rest of a text of several lines stands below its first line.
void AddLines(std::string* text, std::string_view name, std::string_view value) {
  bool first = true;
  for (absl::string_view line : absl::StrSplit(absl::string_view(value.data(), value.size()), '\n')) {
    const std::string shown = Printable({line.data(), line.size()}, kMaxShownLine);
    if (first) {
      AddField(text, name, shown);
    } else {
      absl::StrAppend(text, std::string(15, ' '), shown, "\n");
    }
    first = false;
  }
}

std::string_view Message(const RankFailure& failure) {
  const std::string_view message = failure.exit.error_message;
  return message.substr(0, message.find('\n'));
}

std::string Where(const RankFailure& failure) {
  return absl::StrCat(Printable(failure.host, kMaxShownLine), " (node ", failure.group_rank, ")");
}

void AddOthers(std::string* text, const EqualFailures& others) {
  const RankFailure& first = *others.front();
  std::set<int> pids;
  int64_t begin_ns = first.exit.time_ns, end_ns = begin_ns;
  for (const RankFailure* other : others) {
    pids.insert(other->exit.pid);
    begin_ns = std::min(begin_ns, other->exit.time_ns);
    end_ns = std::max(end_ns, other->exit.time_ns);
  }
  absl::StrAppend(text, "  ", DescribeRanks(others), pids.size() == 1 ? ", pid " : ", pids ", FormatAllRanges(pids),
                  ": ", Printable(process::DescribeEnd(first.exit), kMaxShownLine), ", ", Time(begin_ns));
  if (end_ns != begin_ns) absl::StrAppend(text, " to ", Time(end_ns));
  if (!Message(first).empty()) absl::StrAppend(text, ", ", Printable(Message(first), kMaxShownLine));
  absl::StrAppend(text, "\n");
}

template <typename T>
bool ReadNumber(const json& object, const char* key, int64_t least, int64_t most, T* result) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return false;
  const auto value = found->get<int64_t>();
  if (value < least || value > most) return false;
  *result = static_cast<T>(value);
  return true;
}

bool ReadText(const json& object, const char* key, std::string* result) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return false;
  *result = found->get<std::string>();
  return true;
}

}  // namespace

std::vector<EqualFailures> OtherFailures(const std::vector<RankFailure>& failures) {
  auto alike = [](const RankFailure& a, const RankFailure& b) {
    return a.exit.code == b.exit.code && a.exit.signal == b.exit.signal && a.exit.killed_by == b.exit.killed_by &&
           a.group_rank == b.group_rank && a.host == b.host && Message(a) == Message(b);
  };
  std::vector<EqualFailures> all;
  for (size_t i = 1; i < failures.size(); ++i) {
    auto equal = std::find_if(all.begin(), all.end(),
                              [&](const EqualFailures& one) { return alike(*one.front(), failures[i]); });
    if (equal == all.end()) equal = all.emplace(all.end());
    equal->push_back(&failures[i]);
  }
  return all;
}

std::string DescribeRanks(const EqualFailures& failures) {
  const RankFailure& first = *failures.front();
  std::set<int> ranks;
  for (const RankFailure* failure : failures) ranks.insert(failure->exit.rank);
  return absl::StrCat(ranks.size() == 1
                          ? absl::StrCat("rank ", first.exit.rank, " (local rank ", first.exit.local_rank, ")")
                          : absl::StrCat("ranks ", FormatAllRanges(ranks)),
                      " on ", Where(first));
}

std::string FailureReport(const std::string& command, const std::vector<RankFailure>& failures) {
  if (failures.empty()) return "";
  const RankFailure& first = failures[0];
  const process::WorkerExit& exit = first.exit;
  const std::string line(72, '=');
  std::string text =
      absl::StrCat(line, "\n", Printable(command, kMaxShownLine), " FAILED\n", "First failure, the one to look at:\n");
  AddField(&text, "rank", absl::StrCat(exit.rank, " (local rank ", exit.local_rank, ")"));
  AddField(&text, "node", Where(first));
  AddField(&text, "pid", absl::StrCat(exit.pid));
  AddField(&text, "end", Printable(process::DescribeEnd(exit), kMaxShownLine));
  AddField(&text, "time", Time(exit.time_ns));
  if (exit.error_message.empty()) {
    AddField(
        &text, "error",
        exit.error_json.empty() ? "none was written; torch's @record writes the exception down" : "see the error file");
  } else {
    AddLines(&text, "error", CutUtf8(exit.error_message, kMaxShownMessage));
  }
  AddField(&text, "logs", first.log_folder.empty() ? "none" : Printable(first.log_folder, kMaxShownMessage));
  if (exit.stderr_unread) {
    AddField(&text, "stderr", "went past the launcher; with --tee 2 or --redirects 2 its last lines stand here");
  }
  if (!exit.last_lines.empty()) {
    absl::StrAppend(&text, "Its last lines on stderr:\n");
    for (const std::string& last : exit.last_lines)
      absl::StrAppend(&text, "  | ", Printable(last, kMaxShownLine), "\n");
  }
  if (failures.size() > 1) absl::StrAppend(&text, "Other failures:\n");
  for (const EqualFailures& others : OtherFailures(failures)) AddOthers(&text, others);
  return absl::StrCat(text, line, "\n");
}

absl::Status WriteErrorFile(const std::string& path, const RankFailure& failure) {
  const process::WorkerExit& exit = failure.exit;
  // What is nested too deep is left out: writing it back recurses.
  json error = json::parse(
      exit.error_json, [](int depth, json::parse_event_t, const json&) { return depth <= kMaxDepth; }, false);
  const bool written = error.is_object() && error.contains("message");
  if (!written) {
    const std::string text =
        exit.error_message.empty()
            ? absl::StrCat("rank ", exit.rank, " (local rank ", exit.local_rank, ", node ", failure.host, ", pid ",
                           exit.pid, ") failed: ", process::DescribeEnd(exit))
            : exit.error_message;
    error = {
        {"message", {{"message", text}, {"extraInfo", {{"timestamp", absl::StrCat(exit.time_ns / 1'000'000'000)}}}}}};
  } else if (!error["message"].is_object()) {
    error["message"] = {{"message", error["message"]}};
  }
  error["message"]["errorCode"] = exit.code;
  if (path == "/dev/stderr" || path == "/dev/stdout") {
    (path == "/dev/stderr" ? WriteToStderr : WriteToStdout)(Dump(error) + "\n");
    return absl::OkStatus();
  }
  // In place: a pod's /dev/termination-log can be written, but not replaced.
  absl::StatusOr<UniqueFd> file = OpenOrCreateFile(path, O_WRONLY, 0666, {.follow_own_links = true});
  if (!file.ok()) return absl::UnavailableError(absl::StrCat("error file ", file.status().message()));
  int problem = ::ftruncate(file->get(), 0) == 0 ? 0 : errno;
  if (problem == 0) problem = WriteAll(file->get(), Dump(error));
  if (problem == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("error file ", path, ": ", ::strerror(problem)));
}

std::string EncodeExit(const process::WorkerExit& exit) {
  // The newest lines are worth most.
  std::vector<std::string> lines;
  size_t bytes = 0;
  for (auto line = exit.last_lines.rbegin(); line != exit.last_lines.rend() && lines.size() < kMaxLines; ++line) {
    lines.push_back(CutUtf8(*line, kMaxLinesBytes / kMaxLines));
    bytes += lines.back().size();
    if (bytes > kMaxLinesBytes) break;
  }
  std::reverse(lines.begin(), lines.end());
  json value = {{"local_rank", exit.local_rank},
                {"rank", exit.rank},
                {"pid", exit.pid},
                {"code", exit.code},
                {"signal", exit.signal},
                {"time_ns", exit.time_ns},
                {"error_message", CutUtf8(exit.error_message, kMaxErrorBytes)},
                {"error_json", exit.error_json},
                {"last_lines", lines}};
  if (!exit.killed_by.empty()) value["killed_by"] = exit.killed_by;
  if (exit.stderr_unread) value["stderr_unread"] = true;
  std::string text = Dump(value);
  if (text.size() <= kMaxEncodedExit) return text;
  value["error_json"] = "";  // half of it would be no JSON
  text = Dump(value);
  if (text.size() <= kMaxEncodedExit) return text;
  // Nothing but control characters is six times as long in JSON.
  value["last_lines"] = json::array();
  return Dump(value);
}

absl::StatusOr<process::WorkerExit> DecodeExit(std::string_view text) {
  auto wrong = [](const char* what) { return absl::InvalidArgumentError(absl::StrCat("end of a rank: ", what)); };
  if (text.size() > kMaxDecodedBytes) return wrong("too long");
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return wrong("not a JSON object");
  process::WorkerExit exit;
  if (!ReadNumber(value, "local_rank", 0, kMaxNumber, &exit.local_rank)) return wrong("local_rank");
  if (!ReadNumber(value, "rank", 0, kMaxNumber, &exit.rank)) return wrong("rank");
  if (!ReadNumber(value, "pid", 0, kMaxNumber, &exit.pid)) return wrong("pid");
  if (!ReadNumber(value, "code", 0, 255, &exit.code)) return wrong("code");
  if (!ReadNumber(value, "signal", 0, 64, &exit.signal)) return wrong("signal");
  if (!ReadNumber(value, "time_ns", 0, INT64_MAX, &exit.time_ns)) return wrong("time_ns");
  if (!ReadText(value, "error_message", &exit.error_message)) return wrong("error_message");
  if (!ReadText(value, "error_json", &exit.error_json)) return wrong("error_json");
  if (value.contains("killed_by") && !ReadText(value, "killed_by", &exit.killed_by)) return wrong("killed_by");
  if (exit.killed_by.size() > kMaxShownLine) return wrong("killed_by");
  if (auto unread = value.find("stderr_unread"); unread != value.end()) {
    if (!unread->is_boolean()) return wrong("stderr_unread");
    exit.stderr_unread = unread->get<bool>();
  }
  auto lines = value.find("last_lines");
  if (lines == value.end() || !lines->is_array() || lines->size() > kMaxLines) return wrong("last_lines");
  for (const json& line : *lines) {
    if (!line.is_string()) return wrong("last_lines");
    exit.last_lines.push_back(line.get<std::string>());
  }
  return exit;
}

}  // namespace taskd::run
