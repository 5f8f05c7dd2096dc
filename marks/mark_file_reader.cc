#include "marks/mark_file_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_unescape.h"
#include "marks/mark_line.h"
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

constexpr size_t kBlockBytes = size_t{256} * 1024;
// A name is at most 254 bytes in a ring, or comes from MSPTI. A byte of a name takes up to six bytes of a line.
constexpr size_t kMaxLineBytes = size_t{64} * 1024;

std::optional<MarkRecord::Phase> PhaseOf(uint32_t flag) {
  switch (flag) {
    case kMarkInstant:
    case kMarkInstantStream:
      return MarkRecord::Phase::kInstant;
    case kMarkStart:
    case kMarkStartStream:
      return MarkRecord::Phase::kStart;
    case kMarkEnd:
    case kMarkEndStream:
      return MarkRecord::Phase::kEnd;
    default:
      return std::nullopt;
  }
}

template <typename Number>
bool ReadNumber(const nlohmann::json& object, const char* key, Number& number) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return false;
  const auto value = found->get<uint64_t>();
  number = static_cast<Number>(value);
  return number == value;
}

// Parses a line whose keys have another order or that has other spaces.
std::optional<MarkRecord> ParseOtherForm(std::string_view line, std::string& storage) {
  if (line.size() > kMaxLineBytes) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  MarkRecord record;
  uint32_t kind = 0;
  uint32_t flag = 0;
  uint32_t source = 0;
  if (!ReadNumber(json, "Kind", kind) || kind != 1 || !ReadNumber(json, "Flag", flag) ||
      !ReadNumber(json, "Timestamp", record.time_ns) || !ReadNumber(json, "Id", record.id)) {
    return std::nullopt;
  }
  if (json.contains("SourceKind") && (!ReadNumber(json, "SourceKind", source) || source > 1)) return std::nullopt;
  record.device = source == 1;
  const std::optional<MarkRecord::Phase> phase = PhaseOf(flag);
  if (!phase) return std::nullopt;
  record.phase = *phase;
  const auto object = json.find("MsptiObjectId");
  if (object == json.end() || !object->is_object()) return std::nullopt;
  const auto ids = object->find(record.device ? "Ds" : "Pt");
  if (ids == object->end() || !ids->is_object() ||
      !ReadNumber(*ids, record.device ? "DeviceId" : "ProcessId", record.process_id) ||
      !ReadNumber(*ids, record.device ? "StreamId" : "ThreadId", record.thread_id)) {
    return std::nullopt;
  }
  const auto name = json.find("Name");
  const auto domain = json.find("Domain");
  if (name == json.end() || !name->is_string() || domain == json.end() || !domain->is_string()) return std::nullopt;
  const auto& name_text = name->get_ref<const std::string&>();
  storage = name_text + domain->get_ref<const std::string&>();
  record.name = std::string_view(storage).substr(0, name_text.size());
  record.domain = std::string_view(storage).substr(name_text.size());
  return record;
}

bool IsDigits(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Compares digits as numbers of any length.
bool NumericLess(std::string_view a, std::string_view b) {
  auto number = [](std::string_view text) {
    const size_t zeros = std::min(text.find_first_not_of('0'), text.size());
    return text.substr(zeros);
  };
  const std::string_view x = number(a);
  const std::string_view y = number(b);
  if (x.size() != y.size()) return x.size() < y.size();
  return x != y ? x < y : a < b;
}

}  // namespace

std::optional<MarkRecord> ParseMarkRecord(std::string_view line, std::string& storage) {
  const std::optional<MarkLine> mark = ParseMarkLine(line);
  if (!mark) return ParseOtherForm(line, storage);
  const std::optional<MarkRecord::Phase> phase = PhaseOf(mark->flag);
  if (!phase) return std::nullopt;
  MarkRecord record;
  record.phase = *phase;
  record.device = mark->device;
  record.time_ns = mark->timestamp_ns;
  record.id = mark->id;
  record.process_id = mark->process_id;
  record.thread_id = mark->thread_id;
  record.name = mark->name;
  record.domain = mark->domain;
  const bool plain_name = memchr(mark->name.data(), '\\', mark->name.size()) == nullptr;
  const bool plain_domain = memchr(mark->domain.data(), '\\', mark->domain.size()) == nullptr;
  if (plain_name && plain_domain) return record;
  storage.clear();
  if (!AppendJsonUnescaped(mark->name, storage)) return std::nullopt;
  const size_t name_bytes = storage.size();
  if (!AppendJsonUnescaped(mark->domain, storage)) return std::nullopt;
  record.name = std::string_view(storage).substr(0, name_bytes);
  record.domain = std::string_view(storage).substr(name_bytes);
  return record;
}

absl::StatusOr<MarkFileReader> MarkFileReader::Open(const std::string& rank_dir) {
  MarkFileReader reader;
  reader.rank_dir_ = rank_dir;
  reader.dir_ = UniqueFd(open(rank_dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (reader.dir_.get() < 0) {
    const int error = errno;
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat("'", rank_dir, "': no such directory"));
    if (error == ENOTDIR || error == ELOOP) {
      return absl::FailedPreconditionError(absl::StrCat("'", rank_dir, "': not a directory, or a symbolic link"));
    }
    return absl::UnavailableError(absl::StrCat("'", rank_dir, "': ", strerror(error)));
  }
  const int listed = dup(reader.dir_.get());
  std::unique_ptr<DIR, int (*)(DIR*)> entries(listed < 0 ? nullptr : fdopendir(listed), closedir);
  if (entries == nullptr) {
    const int error = errno;
    if (listed >= 0) close(listed);
    return absl::UnavailableError(absl::StrCat("'", rank_dir, "': ", strerror(error)));
  }
  while (const dirent* entry = readdir(entries.get())) {
    struct stat info;
    if (!IsDigits(entry->d_name) || fstatat(reader.dir_.get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(info.st_mode)) {
      continue;
    }
    reader.files_.emplace_back(entry->d_name);
    reader.total_bytes_ += static_cast<uint64_t>(info.st_size);
  }
  std::sort(reader.files_.begin(), reader.files_.end(), NumericLess);
  return reader;
}

bool MarkFileReader::OpenNextFile() {
  while (next_file_ < files_.size()) {
    const std::string& name = files_[next_file_++];
    begin_ = end_ = 0;
    skipping_ = false;
    gave_partial_ = false;
    // The file may have been replaced by a pipe, which would block without O_NONBLOCK.
    file_ = UniqueFd(openat(dir_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info;
    if (file_.get() >= 0 && fstat(file_.get(), &info) == 0 && S_ISREG(info.st_mode)) {
      posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
      return true;
    }
    // Aging may have removed the file meanwhile, which is not an error.
    if (errno != ENOENT && status_.ok()) {
      status_ = absl::UnavailableError(absl::StrCat("'", rank_dir_, "/", name, "': ", strerror(errno)));
    }
  }
  return false;
}

bool MarkFileReader::Fill() {
  if (begin_ > 0) {
    memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.empty()) buffer_.resize(kMaxLineBytes + kBlockBytes);
  while (true) {
    const ssize_t got = read(file_.get(), buffer_.data() + end_, buffer_.size() - end_);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
      read_bytes_ += static_cast<uint64_t>(got);
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && status_.ok()) {
      status_ =
          absl::UnavailableError(absl::StrCat("'", rank_dir_, "/", files_[next_file_ - 1], "': ", strerror(errno)));
    }
    return false;
  }
}

bool MarkFileReader::Next(MarkRecord& record) {
  while (true) {
    if (file_.get() < 0 && !OpenNextFile()) return false;
    const char* const line = buffer_.data() + begin_;
    const auto* feed = end_ > begin_ ? static_cast<const char*>(memchr(line, '\n', end_ - begin_)) : nullptr;
    if (feed != nullptr) {
      const std::string_view text(line, static_cast<size_t>(feed - line));
      begin_ += text.size() + 1;
      const bool given = std::exchange(gave_partial_, false);
      if (std::exchange(skipping_, false) || given || text.empty()) continue;
      if (std::optional<MarkRecord> parsed = ParseMarkRecord(text, storage_)) {
        record = *parsed;
        return true;
      }
      ++broken_lines_;
      continue;
    }
    if (end_ - begin_ > kMaxLineBytes || skipping_) {
      if (!skipping_) ++broken_lines_;
      skipping_ = true;
      begin_ = end_ = 0;
    }
    if (Fill()) continue;
    // The file ends here. An incomplete line may be left.
    const std::string_view piece(buffer_.data() + begin_, end_ - begin_);
    const bool newest = next_file_ == files_.size();
    if (!piece.empty() && !gave_partial_) {
      if (std::optional<MarkRecord> parsed = ParseMarkRecord(piece, storage_)) {
        gave_partial_ = true;
        record = *parsed;
        return true;
      }
      if (!newest) ++broken_lines_;
    }
    if (newest) return false;
    file_ = UniqueFd();
  }
}

}  // namespace taskd
