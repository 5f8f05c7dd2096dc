// Writes and reads one mark as one line of a mark file, byte for byte in the form of TaskD contract §4.5:
//   {"Kind":1,"Flag":16,"SourceKind":0,"Timestamp":…,"Id":7,"MsptiObjectId":{"Pt":{"ProcessId":123,"ThreadId":456},
//   "Ds":{"DeviceId":123,"StreamId":456}},"Name":"step 1","Domain":"default"}\n
// The line has no break within it. Pt and Ds are always equal, because the original prints a union twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace taskd {

// These are MSPTI's marker flags.
inline constexpr uint32_t kMarkInstant = 1;
inline constexpr uint32_t kMarkStart = 2;
inline constexpr uint32_t kMarkEnd = 4;
inline constexpr uint32_t kMarkInstantStream = 8;
inline constexpr uint32_t kMarkStartStream = 16;
inline constexpr uint32_t kMarkEndStream = 32;

struct MarkLine {
  uint32_t flag = 0;
  uint64_t timestamp_ns = 0;  // Unix time
  uint64_t id = 0;
  uint32_t process_id = 0;
  uint32_t thread_id = 0;
  std::string_view name;    // raw bytes, any; empty in an end
  std::string_view domain;  // raw bytes, any; empty in an end
  bool cut = false;         // the name was cut after its last byte: a split character is dropped
  bool device = false;      // SourceKind 1: a device stamp; process_id and thread_id are its device and stream
};

// Appends the line with its line feed. Names are escaped as Go's encoding/json does (<, >, & and U+2028/9 as \uXXXX,
// invalid UTF-8 as U+FFFD). In the domain "communication" torch_npu sends names whose quotes are already escaped; these
// are not escaped again.
void AppendMarkLine(const MarkLine& mark, std::string& out);

// Reads the fields of a line that AppendMarkLine wrote, without the line feed. Name and domain stay escaped, and `cut`
// is false. Returns nullopt for any other line. The views point into `line`.
std::optional<MarkLine> ParseMarkLine(std::string_view line);

}  // namespace taskd
