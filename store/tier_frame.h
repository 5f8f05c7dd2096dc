// What a tier and the store above it send each other: u32 length, then one of these. Machine's byte order, as all of
// the store's protocol. A tier begins its connection with 00 and kTierMagic (wire.h) and a kHello; kHello answers it.
// A store with a secret answers the first one by a challenge, values[0]: the proof of the secret (SecretProof()) is
// values[0] of the kHello that has to be the tier's next frame.
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
    kHello = 1,    // number: kTierProtocol; down: id, for how many ms acknowledgements are waited for
    kRequest,      // up: id, op, keys, values, number
    kCancel,       // up: id of a kWait or kBarrier
    kForget,       // up: keys of which it keeps no copy any more
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
  uint64_t processed =
      0;  // kReply, kWakeOne, kFault: frames of this tier executed so far, all types but kHello and kAcknowledge
  int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  std::vector<uint8_t> states;  // KeyState
};

inline constexpr int64_t kTierProtocol = 2;
// The biggest are a client's request, and the answer to a kListKeys.
inline constexpr uint32_t kMaxFrameBytes = kMaxRequestBytes + 16 * 1024 * 1024;
inline constexpr uint32_t kMaxFrameStrings = 256 * 1024;  // in each of the lists but that answer's
inline constexpr uint32_t kMaxHelloBytes = 128;

// Appends the frame, with its length before it.
void AppendFrame(const TierFrame& frame, std::string& out);
// `body`: without the length. INVALID_ARGUMENT where it is not whole, a type or operation is unknown, or a list is
// longer than allowed. Strings take 32 bytes and more each, which is why their number has a limit: 8 MiB at most beyond
// the bytes that came (kReply: beyond eight times these).
absl::StatusOr<TierFrame> ParseFrame(std::string_view body);

}  // namespace taskd::store
