// What a manager leaves in its user's runtime folder, and on the other nodes of its job the launcher, so that this
// user's tools find the job and its secret by themselves: <runtime folder>/jobs/<unique>.json, mode 0600, held by
// flock while the manager lives. Another user can neither read these nor put one there (see runtime_dir.h).
//
// Thread safety: the functions may be called from any thread; a handle belongs to one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/unique_fd.h"

namespace taskd {

struct JobFile {
  std::string listen;              // HOST:PORT as bound, with the real port
  std::vector<std::string> hosts;  // literal addresses under which it is reached on this machine
  int port = 0;
  std::string http;     // HOST:PORT; empty: none
  std::string job;      // namespace/name; empty: it has none
  std::string task_id;  // empty: it has none
  int64_t pid = 0;
  int64_t started_unix_s = 0;
  std::string secret;      // never for a log or a message
  uint64_t netns = 0;      // inode of /proc/self/ns/net; 0: not known
  bool elsewhere = false;  // the manager is another process than `pid`, perhaps on another machine
};

// A job file of this process and this moment, for a manager bound to `bound`: all but http, job, task_id and secret.
JobFile DescribeListener(const HostPort& bound);

// The same for a manager that this process reaches at `address`, a name or a literal.
JobFile DescribeManager(const HostPort& address);

// HOST:PORT for a tool on this machine: loopback where it listens on all addresses.
std::string JobAddress(const JobFile& job);

// The file of a manager that runs. It goes with the handle; if the process is killed, with the next ListJobs().
class JobFileHandle {
 public:
  // The file appears whole. INVALID_ARGUMENT: the runtime folder breaks its rule. UNAVAILABLE: path and reason. A
  // manager goes on without it: then its user names it with --manager.
  static absl::StatusOr<std::unique_ptr<JobFileHandle>> Write(const JobFile& job);
  ~JobFileHandle();
  JobFileHandle(const JobFileHandle&) = delete;
  JobFileHandle& operator=(const JobFileHandle&) = delete;

  const std::string& path() const { return path_; }

 private:
  JobFileHandle(UniqueFd folder, UniqueFd file, std::string name, std::string path);

  UniqueFd folder_;
  UniqueFd file_;  // locked while the manager lives
  std::string name_;
  std::string path_;
};

// The jobs of this user whose managers live, oldest first, each once (by its manager's own file where that is here),
// from every candidate for the runtime folder. Files of managers that are gone are removed. What no manager of this
// user writes is skipped: another owner or mode, a link, a FIFO, more than 64 KiB, other content. INVALID_ARGUMENT:
// none was found, and a folder breaks the rule.
absl::StatusOr<std::vector<JobFile>> ListJobs();

// When a job file of this user's last came or went, in Unix seconds; 0: there never was one.
int64_t JobFilesChangedUnixS();

// The job whose manager answers at this address, a name or a literal. Of several (network namespaces have the same
// addresses) the one in this process's network namespace; none if there is not exactly one. One on another namespace's
// loopback is never meant.
std::optional<JobFile> JobAt(const HostPort& address);

// For tools that were given no manager: the only job of this user, or, unless `job` is empty, the only one of that
// name; inside an allocation of Slurm's (SLURM_JOB_ID, where this machine has a job of one) the only one of it.
// INVALID_ARGUMENT: there are several; the message has one line for each, and what to do. NOT_FOUND: there is
// none.
absl::StatusOr<JobFile> ChooseJob(const std::string& job);

}  // namespace taskd
