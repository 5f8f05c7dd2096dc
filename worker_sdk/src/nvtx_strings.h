// Texts as NVTX has them: registered once and meant by a handle, or of wide characters.
#pragma once

#include <stdint.h>
#include <wchar.h>

#include "taskd/ring.h"

namespace taskd::worker {

inline constexpr uint32_t kMaxStrings = 1 << 14;
inline constexpr int kMaxUtf8Bytes = ring::kMaxNameBytes + 2;

// Keeps a copy for the life of the process. Returns its handle, 0 for null and where there is no more room. Any thread.
uint64_t RegisterText(const char* text);

// "unnamed" for a handle of nobody's.
const char* TextOf(uint64_t handle);

// Returns `out`, or null for null. Cut where a whole character ends; what is no character becomes U+FFFD.
const char* ToUtf8(const wchar_t* text, char (&out)[kMaxUtf8Bytes]);

}  // namespace taskd::worker
