// Which PyTorch the ranks will import, as far as that shows without starting a Python.
#pragma once

#include "common/environment.h"

namespace taskd::run {

// Whether the ranks' Python (PYTHON_EXEC, else python3 of PATH) has PyTorch 2 or later, and no older one, in its folders
// of packages and the user's. false where none is found: it may come from elsewhere. Reads folders, which may hang: not for a
// loop that answers others.
bool HasTorch2(const Environment& environment);

}  // namespace taskd::run
