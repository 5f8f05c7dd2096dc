// A folder of mark files that somebody copied together, and what a proxy left for the next one. The first byte picks
// the reader; a folder's files are separated by the byte 0x1e: .rank.json, then mark files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/trace/trace_writer.h"
#include "common/json_unescape.h"
#include "common/unique_fd.h"
#include "marks/mark_file_reader.h"
#include "nlohmann/json.hpp"
#include "proxy/state_file.h"
#include "readers/mark_directory.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr int kMaxFiles = 4;

// /tmp/X/task/0, once for the process.
class Folder {
 public:
  Folder() {
    FUZZ_CHECK(mkdtemp(path_) != nullptr);
    FUZZ_CHECK(mkdir(task().c_str(), 0700) == 0 && mkdir(rank().c_str(), 0700) == 0);
  }
  ~Folder() {
    for (int i = 0; i < kMaxFiles; ++i) unlink(MarkFile(i).c_str());
    for (const std::string& file : {rank() + "/.rank.json", state(), state() + ".new"}) unlink(file.c_str());
    rmdir(rank().c_str());
    rmdir(task().c_str());
    rmdir(path_);
  }
  std::string task() const { return absl::StrCat(path_, "/task"); }
  std::string rank() const { return task() + "/0"; }
  std::string state() const { return absl::StrCat(path_, "/state"); }
  std::string MarkFile(int number) const { return absl::StrCat(rank(), "/", 1'700'000'000 + number); }

  static void Write(const std::string& path, std::string_view text) {
    taskd::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    FUZZ_CHECK(fd.valid() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }

 private:
  char path_[32] = "/tmp/taskd_fuzz_XXXXXX";
};

Folder& TheFolder() {
  static Folder folder;
  return folder;
}

void Unescape(const std::string& text) {
  std::string ours = "before";
  const bool read = taskd::AppendJsonUnescaped(text, ours);
  FUZZ_CHECK(ours.starts_with("before") && ours.size() <= 6 + 3 * text.size());
  if (text.find('\0') != std::string::npos) return;  // the end of its input to the parser below
  // It takes more than JSON does: bytes that are no UTF-8, halves of surrogates.
  const nlohmann::json json = nlohmann::json::parse('"' + text + '"', nullptr, false);
  if (json.is_string()) FUZZ_CHECK(read && ours == "before" + json.get<std::string>());
}

void ReadFolder(const std::string& text) {
  const Folder& folder = TheFolder();
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('\x1e', kMaxFiles));
  Folder::Write(folder.rank() + "/.rank.json", parts[0]);
  uint64_t bytes = 0, lines = 0;
  for (int i = 0; i < kMaxFiles; ++i) {
    const std::string content = i + 1 < static_cast<int>(parts.size()) ? parts[static_cast<size_t>(i) + 1] : "";
    Folder::Write(folder.MarkFile(i), content);
    bytes += content.size();
    lines += static_cast<uint64_t>(std::count(content.begin(), content.end(), '\n')) + 1;
  }
  absl::StatusOr<taskd::readers::MarkDirectory> directory = taskd::readers::ListMarkDirectory(folder.task());
  if (bytes == 0) {
    FUZZ_CHECK(absl::IsInvalidArgument(directory.status()) && !directory.status().message().empty());
    return;
  }
  FUZZ_CHECK(directory.ok() && directory->ranks.size() == 1 && directory->bytes == bytes);
  const taskd::readers::RankMarks& rank = directory->ranks[0];
  FUZZ_CHECK(rank.files.size() == kMaxFiles && rank.node >= -1 && rank.local_rank >= -1 && rank.local_rank <= 131071);

  absl::StatusOr<taskd::MarkFileReader> reader = taskd::MarkFileReader::Open(folder.rank());
  FUZZ_CHECK(reader.ok());
  std::string trace;
  taskd::trace::TraceWriter writer(0, [&trace](std::string_view more) {
    trace += more;
    return absl::OkStatus();
  });
  taskd::trace::TraceRank traced;
  traced.name = rank.host;
  writer.BeginRank(traced);
  uint64_t records = 0;
  taskd::MarkRecord record;
  while (reader->Next(record)) {
    ++records;
    writer.Add(record);
  }
  writer.EndRank();
  FUZZ_CHECK(writer.Finish("").ok());
  FUZZ_CHECK(reader->status().ok() && records + reader->broken_lines() <= lines && reader->read_bytes() <= bytes);
  FUZZ_CHECK(nlohmann::json::accept(trace));
}

void State(const std::string& text) {
  const std::string path = TheFolder().state();
  Folder::Write(path, text);
  const std::optional<taskd::proxy::ProxyState> state = taskd::proxy::LoadProxyState(path);
  if (!state) return;
  taskd::proxy::SaveProxyState(path, *state);
  const std::optional<taskd::proxy::ProxyState> again = taskd::proxy::LoadProxyState(path);
  // What is longer than the reader reads is not written back whole.
  if (state->task_folder.size() + state->mark_folder.size() > 500) return;
  FUZZ_CHECK(again && again->task_folder == state->task_folder && again->wanted == state->wanted &&
             again->mark_folder == state->mark_folder);
  FUZZ_CHECK(!state->wanted || *state->wanted <= taskd::kAllKindsMask);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 65536) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      Unescape(text);
      break;
    case 1:
      ReadFolder(text);
      break;
    default:
      State(text);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const auto line = [](int flag, int64_t time_ns, int id, const char* name, const char* domain) {
    return absl::StrCat("{\"Kind\":1,\"Flag\":", flag, ",\"SourceKind\":", flag > 7 ? 1 : 0,
                        ",\"Timestamp\":", 1'700'000'000'000'000'000 + time_ns, ",\"Id\":", id,
                        ",\"MsptiObjectId\":{\"Pt\":{\"ProcessId\":1,\"ThreadId\":4},\"Ds\":{\"DeviceId\":1,"
                        "\"StreamId\":4}},\"Name\":\"",
                        name, "\",\"Domain\":\"", domain, "\"}\n");
  };
  const std::string step = line(2, 1, 1, "step 1", "default") + line(4, 900, 1, "", "");
  const std::string operation =
      line(16, 10, 2, R"({\"groupName\": \"a\",\"opName\": \"HcclAllreduce\",\"count\": \"7\"})", "communication") +
      line(16, 20, 2, "", "") + line(32, 30, 2, "", "");
  return {
      "0a\\\"b\\u00e4\\ud83d\\ude00\\ud83d x\\n",
      "1{\"node\":1,\"local_rank\":0,\"host\":\"h\"}\x1e" + step + "\x1e" + operation + line(1, 40, 0, "x", "default"),
      "1{}\x1e" + step + step.substr(0, 50) + "\x1e" + step,
      "1{\"node\":18446744073709551615}\x1e\n\n{}\n" + operation + step,
      R"(2{"task_folder":"/a/b","wanted":31})",
      R"(2{"task_folder":"x","wanted":18446744073709551615})"};
}
