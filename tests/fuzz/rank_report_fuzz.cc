// What ranks leave behind and launchers tell each other of it: ends of ranks, their error files, stacks. People read it
// on terminals: bounded, and without control characters. The first byte picks the reader.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "agent/run/failure_report.h"
#include "agent/stacks/stack_collector.h"
#include "agent/stacks/stack_merge.h"
#include "common/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace {

bool IsHarmless(const std::string& text) {
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) return false;
  }
  return true;
}

void Report(const taskd::process::WorkerExit& exit) {
  taskd::run::RankFailure failure;
  failure.exit = exit;
  failure.host = exit.error_message.substr(0, 100);
  failure.log_folder = exit.error_json.substr(0, 100);
  const std::string report = taskd::run::FailureReport(exit.error_message.substr(0, 1000), {failure, failure});
  FUZZ_CHECK(!report.empty() && report.back() == '\n' && IsHarmless(report) && report.size() < 64 * 1024);

  taskd::UniqueFd file(memfd_create("error", MFD_CLOEXEC));
  const std::string path = absl::StrCat("/proc/self/fd/", file.get());
  FUZZ_CHECK(taskd::run::WriteErrorFile(path, failure).ok());
  std::string text(size_t{4} << 20, '\0');
  const ssize_t bytes = pread(file.get(), text.data(), text.size(), 0);
  FUZZ_CHECK(bytes > 0);
  text.resize(static_cast<size_t>(bytes));
  const nlohmann::json written = nlohmann::json::parse(text, nullptr, false);
  FUZZ_CHECK(written.is_object() && written["message"].is_object() && written["message"]["errorCode"] == exit.code);
  taskd::process::MessageOfErrorFile(text);
}

void Exit(const std::string& text) {
  absl::StatusOr<taskd::process::WorkerExit> exit = taskd::run::DecodeExit(text);
  if (!exit.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(exit.status()) && !exit.status().message().empty());
    return;
  }
  const std::string encoded = taskd::run::EncodeExit(*exit);
  FUZZ_CHECK(encoded.size() <= taskd::run::kMaxEncodedExit && encoded.find('\n') == std::string::npos);
  absl::StatusOr<taskd::process::WorkerExit> again = taskd::run::DecodeExit(encoded);
  FUZZ_CHECK(again.ok() && again->rank == exit->rank && again->code == exit->code && again->signal == exit->signal &&
             again->time_ns == exit->time_ns && again->pid == exit->pid);
  Report(*exit);
}

// As a rank writes it: any bytes at all, in every place of them.
void ErrorFile(const std::string& text) {
  taskd::process::WorkerExit exit;
  exit.code = 1;
  exit.error_json = text;
  exit.error_message = taskd::process::MessageOfErrorFile(text);
  FUZZ_CHECK(exit.error_message.size() <= text.size());
  exit.last_lines = {text.substr(0, text.find('\n')), text};
  FUZZ_CHECK(taskd::run::DecodeExit(taskd::run::EncodeExit(exit)).ok());
  Report(exit);
}

void Stacks(const std::string& text) {
  absl::StatusOr<std::vector<taskd::stacks::RankStacks>> stacks = taskd::stacks::DecodeStacks(text);
  if (!stacks.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(stacks.status()) && !stacks.status().message().empty());
    return;
  }
  const std::string encoded = taskd::stacks::EncodeStacks(*stacks);
  absl::StatusOr<std::vector<taskd::stacks::RankStacks>> again = taskd::stacks::DecodeStacks(encoded);
  FUZZ_CHECK(again.ok() && again->size() == stacks->size() && taskd::stacks::EncodeStacks(*again) == encoded);
  const std::string less = taskd::stacks::EncodeStacks(*stacks, 64);
  FUZZ_CHECK(less.size() <= encoded.size() + 64 * stacks->size() && taskd::stacks::DecodeStacks(less).ok());
  const taskd::stacks::MergedStacks merged = taskd::stacks::MergeStacks(*std::move(stacks));
  FUZZ_CHECK(!merged.title.empty() && merged.title.find('\n') == std::string::npos);
  FUZZ_CHECK(merged.log.size() <= taskd::stacks::kMaxLogStackBytes);
  FUZZ_CHECK(IsHarmless(merged.title) && IsHarmless(merged.log) && IsHarmless(merged.full));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 256 * 1024) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      Exit(text);
      break;
    case 1:
      ErrorFile(text);
      break;
    default:
      Stacks(text);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  taskd::process::WorkerExit exit;
  exit.rank = 3;
  exit.pid = 7;
  exit.code = 139;
  exit.signal = 11;
  exit.error_message = "ValueError: x";
  exit.error_json = R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"1"}}})";
  exit.last_lines = {"a", "b"};
  taskd::stacks::ThreadStack thread;
  thread.tid = 5;
  thread.name = "main";
  thread.state = "S";
  thread.syscall = "futex";
  thread.python = {"wait (threading.py:320)", "main (train.py:1)"};
  thread.native = {"poll+0x4f (libc.so.6)"};
  taskd::stacks::RankStacks rank;
  rank.rank = 1;
  rank.command = "python3";
  rank.threads = {thread, thread};
  taskd::stacks::RankStacks gone;
  gone.rank = 2;
  gone.note = "has ended";
  const std::string stacks = taskd::stacks::EncodeStacks({rank, gone});
  // One frame that is longer than the whole log may be.
  rank.threads[0].python = {std::string(100'000, 'f')};
  return {"0" + taskd::run::EncodeExit(exit),
          "1" + exit.error_json,
          R"(1{"message":"text"})",
          "1\x1b[31mred",
          R"(1{"message":{"message":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}})",
          "2" + stacks,
          "2" + taskd::stacks::EncodeStacks({rank, gone}),
          R"(2{"ranks":[{"rank":2147483647,"threads":[{"native":[" (","+0x ("]}]},{"rank":-2147483648}]})"};
}
