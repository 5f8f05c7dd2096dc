#include "common/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace taskd {
namespace {

constexpr size_t kMaxNameBytes = 200;  // leaves room for the rest of the fresh name within NAME_MAX

// Another process of the same id, in another container, may write the same file.
std::string FreshName(const std::string& name) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = static_cast<uint64_t>(time(nullptr));
  return absl::StrCat(".", name.substr(0, kMaxNameBytes), ".", getpid(), "-", absl::Hex(random), ".new");
}

}  // namespace

FreshFile::FreshFile(UniqueFd folder, std::string name, std::string path)
    : folder_(std::move(folder)), name_(std::move(name)), path_(std::move(path)) {}

FreshFile::FreshFile(FreshFile&& other) noexcept
    : folder_(std::move(other.folder_)),
      file_(std::move(other.file_)),
      name_(std::move(other.name_)),
      path_(std::move(other.path_)),
      fresh_name_(std::exchange(other.fresh_name_, "")) {}

FreshFile::~FreshFile() {
  if (!fresh_name_.empty()) unlinkat(folder_.get(), fresh_name_.c_str(), 0);
}

absl::Status FreshFile::Error(int error) const {
  return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(error)));
}

absl::StatusOr<FreshFile> FreshFile::Create(int folder, const std::string& name, mode_t mode, const std::string& path) {
  FreshFile fresh(UniqueFd(fcntl(folder, F_DUPFD_CLOEXEC, 0)), name, path);
  if (!fresh.folder_.valid()) return fresh.Error(errno);
  const std::string fresh_name = FreshName(name);
  absl::StatusOr<UniqueFd> file = CreateFile(fresh_name, mode, {.folder = folder, .shown = path});
  if (!file.ok()) return absl::UnavailableError(file.status().message());
  fresh.file_ = *std::move(file);
  fresh.fresh_name_ = fresh_name;
  return fresh;
}

absl::StatusOr<FreshFile> FreshFile::Create(const std::string& path, mode_t mode) {
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  absl::StatusOr<UniqueFd> folder = OpenFolder(parent, {.shown = path, .follow_links = true});
  if (!folder.ok()) return absl::UnavailableError(folder.status().message());
  return Create(folder->get(), path.substr(slash + 1), mode, path);
}

absl::Status FreshFile::Write(std::string_view data) {
  const int error = WriteAll(file_.get(), data);
  return error == 0 ? absl::OkStatus() : Error(error);
}

absl::Status FreshFile::Sync() {
  const int error = SyncFile(file_.get());
  return error == 0 ? absl::OkStatus() : Error(error);
}

absl::Status FreshFile::Commit() {
  if (renameat(folder_.get(), fresh_name_.c_str(), folder_.get(), name_.c_str()) != 0) return Error(errno);
  fresh_name_.clear();
  return absl::OkStatus();
}

void FreshFile::Remove() { unlinkat(folder_.get(), name_.c_str(), 0); }

absl::Status FreshFile::SyncFolder() {
  const int error = SyncFile(folder_.get());
  return error == 0 ? absl::OkStatus() : Error(error);
}

namespace {

absl::Status WriteAndCommit(absl::StatusOr<FreshFile> file, std::string_view content) {
  absl::Status status = file.status();
  if (status.ok()) status = file->Write(content);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Commit();
  if (status.ok()) status = file->SyncFolder();
  return status;
}

}  // namespace

absl::Status WriteFileAtomically(int folder, const std::string& name, std::string_view content,
                                 const std::string& path) {
  return WriteAndCommit(FreshFile::Create(folder, name, 0600, path), content);
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  return WriteAndCommit(FreshFile::Create(path, 0600), content);
}

}  // namespace taskd
