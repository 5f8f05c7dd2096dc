// The numbers of a packed field, many at once: where messages are mostly these, one at a time is most of what they cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace taskd::proto {

// Appends the numbers to the `size` that `to` has already, up to `most` of them, and gives how many there are then: those
// beyond `most` are counted only. None: the wire is broken.
std::optional<size_t> ReadPacked(std::string_view wire, uint64_t* to, size_t size, size_t most);
// What that is where the processor has no instruction for it.
std::optional<size_t> ReadPackedAnywhere(std::string_view wire, uint64_t* to, size_t size, size_t most);

}  // namespace taskd::proto
