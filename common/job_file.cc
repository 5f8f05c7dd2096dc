#include "common/job_file.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/runtime_dir.h"
#include "nlohmann/json.hpp"
#include "taskd/own_user.h"

namespace taskd {
namespace {

constexpr char kFolder[] = "jobs";
constexpr char kSuffix[] = ".json";
constexpr size_t kMaxBytes = 64 * 1024;
constexpr time_t kYoungS = 60;  // what is being written is not yet locked

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};

uint64_t OwnNetns() {
  struct stat info;
  return stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

// "" for other families.
std::string Literal(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

void AddOnce(std::vector<std::string>& values, const std::string& value) {
  if (!value.empty() && std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

// Also of 0.0.0.0: our listeners take both families then.
std::vector<std::string> LocalAddresses() {
  std::vector<std::string> addresses = {"127.0.0.1", "::1"};
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return addresses;
  for (const ifaddrs* interface = interfaces; interface != nullptr; interface = interface->ifa_next) {
    AddOnce(addresses, Literal(interface->ifa_addr));
  }
  freeifaddrs(interfaces);
  return addresses;
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// The literals that a host stands for; one that connects to a wildcard address reaches loopback.
std::vector<std::string> Resolve(const std::string& host) {
  if (host == "0.0.0.0") return {"127.0.0.1"};
  if (host == "::") return {"::1", "127.0.0.1"};
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> literals;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return literals;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) AddOnce(literals, Literal(info->ai_addr));
  freeaddrinfo(found);
  return literals;
}

std::string ToJson(const JobFile& job) {
  return nlohmann::json{{"listen", job.listen},
                        {"hosts", job.hosts},
                        {"port", job.port},
                        {"http", job.http},
                        {"job", job.job},
                        {"task_id", job.task_id},
                        {"pid", job.pid},
                        {"started_unix_s", job.started_unix_s},
                        {"secret", job.secret},
                        {"netns", job.netns},
                        {"elsewhere", job.elsewhere}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<JobFile> FromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    JobFile job;
    json.at("listen").get_to(job.listen);
    json.at("hosts").get_to(job.hosts);
    json.at("port").get_to(job.port);
    json.at("http").get_to(job.http);
    json.at("job").get_to(job.job);
    json.at("task_id").get_to(job.task_id);
    json.at("pid").get_to(job.pid);
    json.at("started_unix_s").get_to(job.started_unix_s);
    json.at("secret").get_to(job.secret);
    json.at("netns").get_to(job.netns);
    job.elsewhere = json.value("elsewhere", false);
    if (job.port < 1 || job.port > 65535 || !ParseHostPort("listen", job.listen).ok()) return std::nullopt;
    return job;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string UniqueName() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = static_cast<uint64_t>(time(nullptr));
  return absl::StrCat(getpid(), "-", absl::Hex(random), kSuffix);
}

// The job of one file of the folder, if a manager of this user holds it; what none holds any more goes.
std::optional<JobFile> ReadJob(int folder, const std::string& name) {
  const bool is_temporary = absl::StartsWith(name, ".");
  if (!is_temporary && !absl::EndsWith(name, kSuffix)) return std::nullopt;
  absl::StatusOr<UniqueFd> file = OpenFile(name, O_RDONLY, {.folder = folder});
  struct stat info;
  if (!file.ok() || fstat(file->get(), &info) != 0 || !IsOwnUser(info.st_uid) || (info.st_mode & 07777) != 0600) {
    return std::nullopt;
  }
  if (is_temporary && info.st_mtime > time(nullptr) - kYoungS) return std::nullopt;
  if (flock(file->get(), LOCK_SH | LOCK_NB) == 0) {
    unlinkat(folder, name.c_str(), 0);
    return std::nullopt;
  }
  if (errno != EWOULDBLOCK || is_temporary) return std::nullopt;
  absl::StatusOr<std::string> text = ReadOpened(file->get(), kMaxBytes, name);
  return text.ok() ? FromJson(*text) : std::nullopt;
}

absl::StatusOr<std::vector<JobFile>> JobsIn(const std::string& path) {
  absl::StatusOr<UniqueFd> folder = OpenOwnDir(path, false);
  if (!folder.ok()) return folder.status();
  std::unique_ptr<DIR, DirCloser> dir(fdopendir(fcntl(folder->get(), F_DUPFD_CLOEXEC, 0)));
  std::vector<JobFile> jobs;
  if (dir == nullptr) return jobs;
  while (const dirent* entry = readdir(dir.get())) {
    if (std::optional<JobFile> job = ReadJob(folder->get(), entry->d_name)) jobs.push_back(*std::move(job));
  }
  return jobs;
}

bool SamePlace(const JobFile& a, const JobFile& b) {
  return a.port == b.port && a.netns == b.netns &&
         std::any_of(a.hosts.begin(), a.hosts.end(), [&](const std::string& host) {
           return std::find(b.hosts.begin(), b.hosts.end(), host) != b.hosts.end();
         });
}

std::string Since(const JobFile& job) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(job.started_unix_s), absl::LocalTimeZone());
}

}  // namespace

JobFile DescribeListener(const HostPort& bound) {
  JobFile job;
  job.listen = FormatHostPort(bound);
  job.hosts = IsWildcard(bound.host) ? LocalAddresses() : Resolve(bound.host);
  job.port = bound.port;
  job.pid = getpid();
  job.started_unix_s = time(nullptr);
  job.netns = OwnNetns();
  return job;
}

JobFile DescribeManager(const HostPort& address) {
  JobFile job = DescribeListener(address);
  job.elsewhere = true;
  return job;
}

std::string JobAddress(const JobFile& job) {
  absl::StatusOr<HostPort> address = ParseHostPort("listen", job.listen);
  if (!address.ok() || !IsWildcard(address->host)) return job.listen;
  return FormatHostPort({"127.0.0.1", job.port});
}

JobFileHandle::JobFileHandle(UniqueFd folder, UniqueFd file, std::string name, std::string path)
    : folder_(std::move(folder)), file_(std::move(file)), name_(std::move(name)), path_(std::move(path)) {}

JobFileHandle::~JobFileHandle() { unlinkat(folder_.get(), name_.c_str(), 0); }

absl::StatusOr<std::unique_ptr<JobFileHandle>> JobFileHandle::Write(const JobFile& job) {
  absl::StatusOr<std::string> path = RuntimeDir(kFolder);
  if (!path.ok()) return path.status();
  absl::StatusOr<UniqueFd> folder = OpenOwnDir(*path, true);
  if (!folder.ok()) return folder.status();
  const std::string name = UniqueName();
  const std::string full = absl::StrCat(*path, "/", name);
  absl::StatusOr<FreshFile> file = FreshFile::Create(folder->get(), name, 0600, full);
  absl::Status status = file.status();
  // Locked before it has its name: a file with a name and no lock is stale.
  if (status.ok() && (fchmod(file->fd(), 0600) != 0 || flock(file->fd(), LOCK_EX | LOCK_NB) != 0)) {
    status = absl::UnavailableError(absl::StrCat(full, ": ", strerror(errno)));
  }
  if (status.ok()) status = file->Write(ToJson(job));
  if (status.ok()) status = file->Commit();
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat("the job file cannot be written: ", status.message()));
  }
  return std::unique_ptr<JobFileHandle>(new JobFileHandle(*std::move(folder), file->TakeFile(), name, full));
}

absl::StatusOr<std::vector<JobFile>> ListJobs() {
  std::vector<JobFile> jobs;
  absl::Status refused;
  for (const std::string& dir : RuntimeDirCandidates()) {
    absl::StatusOr<std::vector<JobFile>> found = JobsIn(absl::StrCat(dir, "/", kFolder));
    if (found.ok()) {
      std::move(found->begin(), found->end(), std::back_inserter(jobs));
    } else if (!absl::IsNotFound(found.status())) {
      refused = found.status();
    }
  }
  if (jobs.empty() && !refused.ok()) return refused;
  std::sort(jobs.begin(), jobs.end(), [](const JobFile& a, const JobFile& b) {
    return std::tie(a.elsewhere, a.started_unix_s, a.pid) < std::tie(b.elsewhere, b.started_unix_s, b.pid);
  });
  // Several launchers of one job may be here, and its manager. What a launcher wrote before it knew better does not
  // stand beside the word of the manager that listens there.
  const size_t managers = std::count_if(jobs.begin(), jobs.end(), [](const JobFile& job) { return !job.elsewhere; });
  const std::vector<JobFile> here(jobs.begin(), jobs.begin() + static_cast<ptrdiff_t>(managers));
  std::set<std::pair<std::string, int>> seen;
  std::erase_if(jobs, [&](const JobFile& job) {
    const bool is_first = seen.emplace(job.secret, job.port).second;
    return job.elsewhere && (!is_first || std::any_of(here.begin(), here.end(),
                                                      [&](const JobFile& one) { return SamePlace(one, job); }));
  });
  std::sort(jobs.begin(), jobs.end(), [](const JobFile& a, const JobFile& b) {
    return std::tie(a.started_unix_s, a.pid) < std::tie(b.started_unix_s, b.pid);
  });
  return jobs;
}

int64_t JobFilesChangedUnixS() {
  int64_t changed_s = 0;
  struct stat info;
  for (const std::string& dir : RuntimeDirCandidates()) {
    if (stat(absl::StrCat(dir, "/", kFolder).c_str(), &info) == 0)
      changed_s = std::max<int64_t>(changed_s, info.st_mtime);
  }
  return changed_s;
}

std::optional<JobFile> JobAt(const HostPort& address) {
  absl::StatusOr<std::vector<JobFile>> jobs = ListJobs();
  if (!jobs.ok()) return std::nullopt;
  std::erase_if(*jobs, [&](const JobFile& job) { return job.port != address.port; });
  if (jobs->empty()) return std::nullopt;  // no name is looked up for nothing
  const std::vector<std::string> literals = Resolve(address.host);
  const uint64_t here = OwnNetns();
  auto is_here = [&](const JobFile& job) { return job.netns == here || job.netns == 0 || here == 0; };
  auto answers = [&](const JobFile& job) {
    return std::any_of(literals.begin(), literals.end(), [&](const std::string& literal) {
      return (is_here(job) || !IsLoopback({literal, 0})) &&
             std::find(job.hosts.begin(), job.hosts.end(), literal) != job.hosts.end();
    });
  };
  std::erase_if(*jobs, [&](const JobFile& job) { return !answers(job); });
  if (jobs->size() > 1) std::erase_if(*jobs, [&](const JobFile& job) { return !is_here(job); });
  if (jobs->size() != 1) return std::nullopt;
  return std::move(jobs->front());
}

namespace {

std::string Allocation() {
  const char* id = std::getenv("SLURM_JOB_ID");
  return id == nullptr ? "" : id;
}

bool IsFromEnvironment(const std::string& job) {
  const char* variable = std::getenv("TASKD_JOB");
  return variable != nullptr && (job == variable || job == absl::StrCat("default/", variable));
}

// Ends the message about a named job that does not run: "; default/a runs, and taskd jobs lists all".
std::string OtherJobs(const std::vector<JobFile>& jobs) {
  constexpr size_t kNamed = 3;
  if (jobs.empty()) return "; taskd jobs lists all";
  std::vector<std::string> names;
  for (const JobFile& one : jobs) names.push_back(one.job.empty() ? "(no job name)" : one.job);
  const std::string more = names.size() > kNamed ? absl::StrCat(" and ", names.size() - kNamed, " more") : "";
  names.resize(std::min(names.size(), kNamed));
  return absl::StrCat("; ", absl::StrJoin(names, ", "), more, names.size() == 1 ? " runs" : " run",
                      ", and taskd jobs lists all");
}

bool IsSlurms(const JobFile& job) { return absl::StartsWith(job.job, "slurm/"); }

// Its job is slurm/<name>-<id of the allocation>, its task id <id of the allocation>.<step>, where nobody chose others.
bool IsOfAllocation(const JobFile& job, const std::string& allocation) {
  return (IsSlurms(job) && absl::EndsWith(job.job, absl::StrCat("-", allocation))) ||
         absl::StartsWith(job.task_id, absl::StrCat(allocation, "."));
}

}  // namespace

absl::StatusOr<JobFile> ChooseJob(const std::string& job) {
  absl::StatusOr<std::vector<JobFile>> jobs = ListJobs();
  if (!jobs.ok()) return jobs.status();
  const std::string running = job.empty() ? "" : OtherJobs(*jobs);
  if (!job.empty()) std::erase_if(*jobs, [&](const JobFile& other) { return other.job != job; });
  std::string which =
      job.empty() ? "job" : absl::StrCat("job '", job, "'", IsFromEnvironment(job) ? " (TASKD_JOB)" : "");
  if (const std::string allocation = job.empty() ? Allocation() : ""; !allocation.empty()) {
    const auto of_it = [&](const JobFile& one) { return IsOfAllocation(one, allocation); };
    // Where no job is any allocation's, the user means what he would mean without Slurm.
    if (std::any_of(jobs->begin(), jobs->end(), [&](const JobFile& one) { return IsSlurms(one) || of_it(one); })) {
      std::erase_if(*jobs, [&](const JobFile& one) { return !of_it(one); });
      absl::StrAppend(&which, " of Slurm job ", allocation);
    }
  }
  if (jobs->size() == 1) return std::move(jobs->front());
  if (jobs->empty()) {
    return absl::NotFoundError(absl::StrCat("no ", which, " of this user runs on this machine", running,
                                            "; name one with --manager HOST:PORT"));
  }
  std::string message =
      absl::StrCat(jobs->size(), job.empty() ? " jobs" : absl::StrCat(" managers of ", which),
                   " of this user run on this machine; name one with --manager", job.empty() ? " or --job" : "");
  for (const JobFile& one : *jobs) {
    absl::StrAppend(&message, "\n  ", JobAddress(one), "  ", one.job.empty() ? "(no job name)" : one.job, "  pid ",
                    one.pid, "  since ", Since(one));
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace taskd
