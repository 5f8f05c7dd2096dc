// What messages say of somebody else's files.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "taskd/own_user.h"

namespace taskd {

// Of what is neither this user's nor root's: "belongs to user 2002, not to this one, 1000". In a user namespace the number
// may be that of everybody who has none there, and of this process as well.
inline std::string ForeignOwner(uid_t owner) {
  if (!IsUnmappedUser(owner)) return absl::StrCat("belongs to user ", owner, ", not to this one, ", geteuid());
  return absl::StrCat("belongs to user ", owner,
                      ", as this user namespace shows everybody whom it does not map, so it is nobody's own",
                      owner == geteuid() ? "; run TaskD as a user whom the namespace maps" : "");
}

}  // namespace taskd
