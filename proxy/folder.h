// Folders and files where others may put and swap what they like: FIFOs, devices, links, folders in place of files and
// files in place of folders. Nothing here follows a link at the name it is given, waits for what lies there to be
// opened, or takes anything for a file that is none. Names are relative to a folder's descriptor, which goes on to mean
// the folder that was checked whatever is put in its place.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd::proxy {

// `path` in messages only. FAILED_PRECONDITION: it is a symbolic link or no folder; otherwise what the system says.
absl::StatusOr<UniqueFd> OpenFolder(int parent, const std::string& name, const std::string& path);

// Opens a file that is there (no O_CREAT), e.g. with O_RDWR | O_APPEND. FAILED_PRECONDITION: it is a link, no regular
// file, or to be written and has a second name somewhere; otherwise what the system says.
absl::StatusOr<UniqueFd> OpenRegular(int folder, const std::string& name, int flags, const std::string& path);

// Replaces <folder>/<name> by a file that has this text, whole or not at all. It is written as ".<name>.new", where
// what lies there is removed, or beside it where that cannot be.
absl::Status ReplaceFile(int folder, const std::string& name, std::string_view text, const std::string& path);

// Calls `visit` with each name in the folder but "." and "..", in no order, until it returns false.
absl::Status ListFolder(int folder, const std::function<bool(const char* name)>& visit);

}  // namespace taskd::proxy
