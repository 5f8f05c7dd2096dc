// What passes over the proxy's UNIX stream socket: a hello with the ring segment, an answer, and for agents commands.
//
// A worker sends one Hello with its segment's file descriptor (SCM_RIGHTS, on the first byte), gets one HelloReply, and
// then sends nothing; the connection stays open. Each end takes its closing as "the other is gone": the worker connects
// again until it finds a proxy, the proxy drains what the rank left. An agent sends its Hello without a descriptor and
// then exchanges frames: a 32-bit length (host order, at most kMaxFrameBytes) and one JSON object:
//   proxy -> agent  {"id":7,"operator":"KILL_WORKER","args":{...}}
//   agent -> proxy  {"id":7,"ok":true,"message":""}
//
// The same fields in host byte order; both ends are on one machine.
#pragma once

#include <cstdint>

namespace taskd::hello {

inline constexpr uint32_t kMagic = 0x4c484454;  // "TDHL", little endian
inline constexpr uint16_t kVersion = 1;
inline constexpr uint32_t kMaxFrameBytes = 64 * 1024;

enum Role : uint16_t { kRoleWorker = 1, kRoleAgent = 2 };

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t role;
  int32_t rank;            // global rank; -1 for an agent
  int32_t local_rank;      // -1: not known
  uint32_t pid;            // as the sender sees it; the kernel's word (SO_PEERCRED) decides on trust
  uint32_t disk_limit_mb;  // of the rank's own mark files; 0: no wish
  uint8_t reserved[40];
};
static_assert(sizeof(Hello) == 64);

enum Status : uint16_t {
  kAccepted = 0,
  kRefused = 1,  // the message has the reason; asking again will not help this process
  kTaken = 2,    // the rank is a connected, living process's; once that ends, it is whose who asks again
};

struct HelloReply {
  uint32_t magic;
  uint16_t version;
  uint16_t status;
  char message[56];  // NUL-terminated
};
static_assert(sizeof(HelloReply) == 64);

// Segments that no process holds any more are found by name: a proxy looks for the names that begin with its own
// prefix. FNV-1a over the bytes of the socket path exactly as --socket and TASKD_SOCKET spell it.
//   /dev/shm/taskd-<uid>-<16 hex digits of the hash>-<pid>-<16 hex digits, unique>
inline constexpr char kSegmentFolder[] = "/dev/shm";

constexpr uint64_t HashSocketPath(const char* path) {
  uint64_t hash = 0xcbf29ce484222325;
  for (; *path != '\0'; ++path) hash = (hash ^ static_cast<uint8_t>(*path)) * 0x100000001b3;
  return hash;
}

}  // namespace taskd::hello
