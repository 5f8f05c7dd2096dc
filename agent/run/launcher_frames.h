// How launchers reach the rendezvous on the port of the root store (store/frame_service.h): 00, kLauncherMagic, then
// frames in both directions.
#pragma once

#include <cstdint>

namespace taskd::run {

inline constexpr uint32_t kLauncherMagic = 0x314C4B54;  // "TKL1" in memory order
// A body sent to the root, until whoever sends it has joined; from then on kMaxLauncherFrameBytes.
inline constexpr uint32_t kMaxStrangersFrameBytes = 64 * 1024;
inline constexpr uint32_t kMaxLauncherFrameBytes = 16 * 1024 * 1024;

}  // namespace taskd::run
