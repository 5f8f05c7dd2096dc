// Requests to a store in any client dialect, and their replies. They are passive data. The operations and their meaning
// are those of PyTorch's TCPStore, releases 1.9 to 2.9 (docs/formats.md, "Store").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taskd::store {

enum class StoreOp : uint8_t {
  kSet = 1,     // keys[0], values[0]                     no reply
  kCompareSet,  // keys[0], values[0] expected, values[1] desired → values[0]
  kGet,         // keys[0]                                → values[0]
  kAdd,         // keys[0], number                        → number, the new value
  kCheck,       // keys                                   → number, 1 if all exist
  kWait,        // keys                                   → (empty) as soon as all exist
  kCancelWait,  //                                        → (empty); ends this client's kWait or kBarrier
  kNumKeys,     //                                        → number
  kDelete,      // keys[0]                                → number of keys deleted, 0 or 1
  kAppend,      // keys[0], values[0]                     no reply
  kMultiGet,    // keys                                   → values
  kMultiSet,    // keys, values                           no reply
  kQueuePush,   // keys[0], values[0]                     no reply
  kQueuePop,    // keys[0]                                → number, the length before; values[0] if that was > 0
  kQueueLen,    // keys[0]                                → number
  kListKeys,    //                                        → values: the keys
  kBarrier,     // keys[0], number: world size            → (empty) when as many clients have come
  kPing,        // number                                 → number
  kWatchKey,    // keys[0]; refused: the connection is closed
};

struct StoreRequest {
  StoreOp op = StoreOp::kPing;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  int64_t number = 0;
};

struct StoreReply {
  int64_t number = 0;
  std::vector<std::string> values;
};

// The dialect of a client (the launcher's option is --dialect). For clients without VALIDATE it decides the meaning of
// type numbers 7 and 8, which cannot be inferred from the bytes.
enum class StoreDialect : uint8_t {
  kUnknown,  // no bytes have come yet
  k1x,       // 1.9 to 2.0: 7 WATCH_KEY, 8 DELETE_KEY; builds of mid-2023 also have 9 to 12 (wire.cc)
  k21,       // 2.1: 7 DELETE_KEY, 8 APPEND, 9 MULTI_GET, 10 MULTI_SET, 11 CANCEL_WAIT
  k22,       // 2.2 and later: begins with VALIDATE
};

// These are the limits of one request. PyTorch's own server ends a connection beyond 8 KiB, 8 MiB and 128 Ki keys.
inline constexpr uint64_t kMaxKeyBytes = 16 * 1024;
inline constexpr uint64_t kMaxValueBytes = 9 * 1024 * 1024;
inline constexpr uint64_t kMaxKeys = 128 * 1024;
inline constexpr uint64_t kMaxRequestBytes = 64 * 1024 * 1024;

}  // namespace taskd::store
