// The frames between a tier and the store above it: a u32 length, then the frame. Integers are in the machine's byte
// order, as in all of the store's protocol. A tier begins its connection with 00 and kTierMagic (wire.h) and a kHello;
// a kHello answers it. A store with a secret answers the first kHello by a challenge in values[0]. The tier's next
// frame must then be a kHello with the proof of the secret (SecretProof()) in values[0].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/core.h"
#include "store/request.h"

namespace taskd::store {

struct TierFrame {
  enum class Type : uint8_t {
    kHello = 1,    // number: kTierProtocol; down: id, the ms to wait for acknowledgements
    kRequest,      // up: id, op, keys, values, number
    kCancel,       // up: id of a kWait or kBarrier
    kForget,       // up: keys whose copies the tier has dropped
    kAcknowledge,  // up: id of a kRevoke
    kWakeBack,     // up: keys[0]
    kReply,        // down: id, number, values, states, processed
    kWakeOne,      // down: id
    kFault,        // down: id; the client's connection is to be closed
    kRevoke,       // down: id, keys
  };

  Type type = Type::kHello;
  StoreOp op = StoreOp::kPing;
  bool of_this_try = false;
  uint64_t id = 0;
  uint64_t processed = 0;
  int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  std::vector<uint8_t> states;  // KeyState
};

inline constexpr int64_t kTierProtocol = 2;
// The biggest frames are a client's request and the answer to a kListKeys.
inline constexpr uint32_t kMaxFrameBytes = kMaxRequestBytes + 16 * 1024 * 1024;
inline constexpr uint32_t kMaxFrameStrings = 256 * 1024;  // for each list, except that of a kListKeys answer
inline constexpr uint32_t kMaxHelloBytes = 128;

// Appends the frame after its length.
void AppendFrame(const TierFrame& frame, std::string& out);
// Parses a frame; `body` does not include the length. INVALID_ARGUMENT: the frame is incomplete, a type or operation is
// unknown, or a list is too long. Each string takes at least 32 bytes, so the number of strings is limited. A frame
// takes at most 8 MiB more than its bytes; a kReply takes at most 8 MiB more than eight times its bytes.
absl::StatusOr<TierFrame> ParseFrame(std::string_view body);

}  // namespace taskd::store
