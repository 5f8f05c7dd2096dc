// Replaces a file as a whole: a reader finds the old content or the new one, even after the machine has lost its power.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace taskd {

// Writes `content` beside the file `name` of the folder that the descriptor `folder` stands for, under a name of its own,
// with mode 0600, and gives it that name. OK: it is on the disk. UNAVAILABLE: `path`, which only messages have, and the
// system's reason; the file is then as it was, unless its folder alone could not be written to the disk, and nothing stays
// beside it. What has the name (a symbolic link too) is replaced; a folder is not. Takes as long as the storage does.
absl::Status WriteFileAtomically(int folder, const std::string& name, std::string_view content,
                                 const std::string& path);

// The same of the file at `path`, in a folder that exists.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace taskd
