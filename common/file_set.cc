#include "common/file_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace taskd {
namespace {

// `status`: of a fresh file, "PATH: WHY".
absl::Status CannotBeWritten(const std::string& path, const absl::Status& status) {
  const std::string named = path + ": ";
  return absl::UnavailableError(
      absl::StrCat(path, " cannot be written: ", absl::StripPrefix(status.message(), absl::string_view(named))));
}

}  // namespace

absl::Status FileSet::Add(const std::string& path, std::string_view content) {
  absl::StatusOr<FreshFile> file = FreshFile::Create(path, 0666);
  absl::Status status = file.status();
  if (status.ok()) status = file->Write(content);
  if (status.ok()) status = file->Sync();
  if (!status.ok()) return CannotBeWritten(path, status);
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status FileSet::Commit() {
  for (size_t i = 0; i < files_.size(); ++i) {
    const absl::Status status = files_[i].Commit();
    if (status.ok()) continue;
    for (size_t done = 0; done < i; ++done) files_[done].Remove();
    return CannotBeWritten(files_[i].path(), status);
  }
  // Best effort: the names are there.
  for (FreshFile& file : files_) static_cast<void>(file.SyncFolder());
  return absl::OkStatus();
}

}  // namespace taskd
