#include "common/log_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/foreign_owner.h"
#include "common/line_writer.h"
#include "common/log_level.h"
#include "spdlog/sinks/sink.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

constexpr char kDefaultFolder[] = "taskd_log";
constexpr std::chrono::seconds kLastFileLines{1};
constexpr char kAsideTime[] = "%Y-%m-%dT%H-%M-%E3S";

std::optional<spdlog::level::level_enum> Level(const Environment& environment, const char* variable,
                                               std::vector<std::string>& problems) {
  const std::string text = ValueOf(environment, variable);
  if (text.empty()) return std::nullopt;
  const std::optional<spdlog::level::level_enum> level = ParseLogLevel(text);
  if (!level) problems.push_back(fmt::format("{} is '{}'; it must be DEBUG, INFO, WARNING or ERROR", variable, text));
  return level;
}

std::atomic<bool> ending = false;
// Lasts for ever: threads may log while the process ends.
std::atomic<LineWriter*> file_writer = nullptr;

// Nobody who logs waits for storage: a thread does, for ever where it hangs.
LineWriter* MakeFileWriter(LogFile file) {
  auto target = [file = std::make_shared<LogFile>(std::move(file)), failing = false](std::string_view lines) mutable {
    const absl::Status status = file->Write(lines);
    if (!status.ok() && !failing && !ending) spdlog::warn("no log file: {}", status.message());
    failing = !status.ok();
    return std::string(status.message());
  };
  LineWriter::Options options;
  options.loss = [](uint64_t lines, std::string_view) {
    return fmt::format("{} lines could not be written here\n", lines);
  };
  static std::deque<LineWriter>& writers = *new std::deque<LineWriter>;  // of tests, which do it again
  return &writers.emplace_back(std::move(target), std::move(options));
}

void FlushFile() {
  ending = true;
  if (LineWriter* writer = file_writer) writer->Flush(std::chrono::steady_clock::now() + kLastFileLines);
}

class FileSink final : public spdlog::sinks::sink {
 public:
  explicit FileSink(spdlog::level::level_enum level) { set_level(level); }

  // The child of a fork has no thread that writes, and another one of its parent's may have held the lock.
  void log(const spdlog::details::log_msg& message) override {
    LineWriter* writer = file_writer;
    if (writer == nullptr) return;
    spdlog::memory_buf_t line;
    LogFormatter()->format(message, line);
    writer->Write({line.data(), line.size()});
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

absl::Status Error(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

// In a folder that others may write to another user may have made the file, to read what is logged. Its owner is as the file
// system shows it: some show one for all files, or another one than the user who made it.
absl::Status CheckOwner(int folder, int file, const std::string& name, const std::string& path) {
  struct stat of_folder, of_file, of_fresh;
  if (fstat(folder, &of_folder) != 0 || fstat(file, &of_file) != 0) return Error(path);
  const bool only_own = IsOwnUserOrRoot(of_folder.st_uid) && (of_folder.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (only_own || IsOwnUserOrRoot(of_file.st_uid)) return absl::OkStatus();
  const absl::StatusOr<FreshFile> fresh = FreshFile::Create(folder, name, 0600, path);
  if (fresh.ok() && fstat(fresh->fd(), &of_fresh) == 0 && of_fresh.st_uid == of_file.st_uid &&
      !IsUnmappedUser(of_file.st_uid)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", ForeignOwner(of_file.st_uid)));
}

}  // namespace

LogSettings ReadLogSettings(const Environment& environment) {
  LogSettings settings;
  settings.stderr_level = Level(environment, "TASKD_STD_LOG_LEVEL", settings.problems);
  const std::string on_stderr = ValueOf(environment, "TASKD_LOG_STDOUT");
  if (on_stderr == "False") {
    settings.stderr_level = spdlog::level::off;
  } else if (!on_stderr.empty() && on_stderr != "True") {
    settings.problems.push_back(fmt::format("TASKD_LOG_STDOUT is '{}'; it must be True or False", on_stderr));
  }
  settings.folder = ValueOf(environment, "TASKD_LOG_PATH");
  const bool has_file = !settings.folder.empty() || !ValueOf(environment, "TASKD_FILE_LOG_LEVEL").empty();
  if (has_file && settings.folder.empty()) settings.folder = kDefaultFolder;
  settings.file_level = Level(environment, "TASKD_FILE_LOG_LEVEL", settings.problems).value_or(settings.file_level);
  return settings;
}

LogFile::LogFile(std::string folder, std::string name, size_t max_bytes)
    : folder_(std::move(folder)), name_(std::move(name)), max_bytes_(max_bytes) {}

std::string LogFile::Path() const { return absl::StrCat(folder_, "/", name_); }

absl::Status LogFile::Open() {
  std::filesystem::path path = std::filesystem::path(folder_).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "logs/" as "logs": a link at its end is one
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);  // what is wrong with it shows at the next step
  if (mkdir(path.c_str(), 0750) != 0 && errno != EEXIST) return Error(path);
  absl::StatusOr<UniqueFd> folder = OpenFolder(path);
  if (!folder.ok()) return folder.status();
  folder_fd_ = *std::move(folder);
  file_.reset();
  absl::StatusOr<UniqueFd> file =
      OpenOrCreateFile(name_, O_WRONLY | O_APPEND, 0640, {.folder = folder_fd_.get(), .shown = Path()});
  if (!file.ok()) return file.status();
  if (absl::Status good = CheckOwner(folder_fd_.get(), file->get(), name_, Path()); !good.ok()) return good;
  file_ = *std::move(file);
  return absl::OkStatus();
}

absl::Status LogFile::Write(std::string_view line, Clock::time_point now) {
  struct stat ours;
  struct stat named;
  if (!file_.valid() || fstatat(folder_fd_.get(), name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      fstat(file_.get(), &ours) != 0 || named.st_ino != ours.st_ino || named.st_dev != ours.st_dev) {
    if (absl::Status status = Open(); !status.ok()) return status;
    if (fstat(file_.get(), &ours) != 0) return Error(Path());
  }
  if (ours.st_size > 0 && static_cast<size_t>(ours.st_size) + line.size() > max_bytes_) {
    if (absl::Status status = Roll(now); !status.ok()) return status;
  }
  const ssize_t written = write(file_.get(), line.data(), line.size());
  if (written < 0) return Error(Path());
  if (static_cast<size_t>(written) == line.size()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(Path(), ": no room for a whole line"));
}

absl::Status LogFile::Roll(Clock::time_point now) {
  const std::string stem = std::filesystem::path(name_).stem();
  const std::string aside =
      absl::StrCat(stem, "-", absl::FormatTime(kAsideTime, absl::FromChrono(now), absl::UTCTimeZone()), ".log");
  if (renameat(folder_fd_.get(), name_.c_str(), folder_fd_.get(), aside.c_str()) != 0) return Error(Path());
  fchmod(file_.get(), 0400);
  RemoveOld(now);
  return Open();
}

void LogFile::RemoveOld(Clock::time_point now) const {
  const std::string prefix = absl::StrCat(std::string(std::filesystem::path(name_).stem()), "-");
  std::vector<std::pair<absl::Time, std::string>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    std::string name = entry.path().filename();
    absl::Time time;
    if (!name.starts_with(prefix) || !name.ends_with(".log")) continue;
    const std::string text = name.substr(prefix.size(), name.size() - prefix.size() - 4);
    if (!absl::ParseTime(kAsideTime, text, absl::UTCTimeZone(), &time, nullptr)) continue;
    found.emplace_back(time, std::move(name));
  }
  std::sort(found.rbegin(), found.rend());
  const absl::Time oldest = absl::FromChrono(now) - absl::Hours(24 * kKeptDays);
  for (size_t i = 0; i < found.size(); ++i) {
    if (i >= kKept || found[i].first < oldest) unlinkat(folder_fd_.get(), found[i].second.c_str(), 0);
  }
}

void TakeLogVariables(const Environment& environment, const std::string& file_name) {
  const LogSettings settings = ReadLogSettings(environment);
  const std::shared_ptr<spdlog::logger> logger = spdlog::default_logger();
  spdlog::level::level_enum least = settings.stderr_level.value_or(logger->level());
  for (const spdlog::sink_ptr& sink : logger->sinks()) sink->set_level(least);
  if (!settings.folder.empty()) {
    [[maybe_unused]] static const bool prepared = [] {
      pthread_atfork(nullptr, nullptr, [] { file_writer = nullptr; });
      return std::atexit(FlushFile) == 0;
    }();
    file_writer = MakeFileWriter(LogFile(settings.folder, file_name));
    logger->sinks().push_back(std::make_shared<FileSink>(settings.file_level));
    least = std::min(least, settings.file_level);
  }
  logger->set_level(least);
  for (const std::string& line : settings.problems) spdlog::warn("{}", line);
}

}  // namespace taskd
