#include "agent/modes/node_files.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "agent/process/resolver.h"
#include "common/file_set.h"
#include "common/files.h"
#include "common/log.h"

namespace taskd::modes {
namespace {

constexpr char kPortPlace[] = "{{MY_SSHD_PORT}}";
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string Now() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%d-%H:%M:%S", &local);
  return text;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, const std::string& content) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);  // Add() reports errors
  FileSet file;
  absl::Status status = file.Add(path, content);
  return status.ok() ? file.Commit() : status;
}

absl::StatusOr<std::string> FillInSshdConfig(const std::string& path, int port) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes, {.follow_links = true});
  if (!text.ok()) return absl::NotFoundError(absl::StrCat(text.status().message(), "; sshd needs it"));
  if (!absl::StrContains(*text, kPortPlace)) return path;
  const std::string filled = absl::StrCat(path, ".", port);
  absl::Status status = WriteWholeFile(filled, absl::StrReplaceAll(*text, {{kPortPlace, std::to_string(port)}}));
  if (!status.ok()) return status;
  return filled;
}

absl::StatusOr<std::string> FindSshd(const Environment& environment) {
  const std::string folders = absl::StrCat(ValueOf(environment, "PATH"), ":/usr/sbin:/usr/local/sbin");
  for (absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) {
    const std::string candidate = absl::StrCat(folder, "/sshd");
    if (folder[0] == '/' && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("sshd: not found in ", folders));
}

std::vector<std::string> OwnNamesAndAddresses() {
  std::vector<std::string> result;
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0) result.emplace_back(name);
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return result;
  for (const ifaddrs* one = list; one != nullptr && result.size() < 32; one = one->ifa_next) {
    char text[INET6_ADDRSTRLEN];
    if (one->ifa_addr == nullptr) continue;
    const void* address = nullptr;
    if (one->ifa_addr->sa_family == AF_INET) {
      const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
      if (ntohl(v4.s_addr) >> 24 != 127) address = &v4;
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LOOPBACK(&v6) && !IN6_IS_ADDR_LINKLOCAL(&v6)) address = &v6;
    }
    if (address != nullptr && inet_ntop(one->ifa_addr->sa_family, address, text, sizeof(text)) != nullptr) {
      result.emplace_back(text);
    }
  }
  freeifaddrs(list);
  return result;
}

bool IsThisNode(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return false;
  std::vector<process::SocketAddress> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    process::SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
  }
  freeaddrinfo(list);
  return std::any_of(addresses.begin(), addresses.end(), process::IsOwnAddress);
}

int CountNvidiaSmiLines() {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen("command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null", "r"), pclose);
  int lines = 0;
  int c;
  while (pipe && (c = fgetc(pipe.get())) != EOF) lines += c == '\n' ? 1 : 0;
  if (lines > 0) return lines;
  return -1;  // nvidia-smi that lists nothing is as good as none
}

void AnnounceMpirun(const ModePlan& plan) {
  for (const PlannedFile& file : plan.files) {
    if (absl::EndsWith(file.path, "/hostfile")) WriteToStdout("[run_mpi] hostfile:\n" + file.content);
  }
  WriteToStdout(absl::StrCat("[run_mpi] start exec command time: ", Now(),
                             "\n[run_mpi] command: ", absl::StrJoin(plan.processes.front().argv, " "), "\n"));
}

void AnnounceMpirunEnd(int code) {
  WriteToStdout(absl::StrCat("[run_mpi] exec command ", code == 0 ? "successfully" : "failed", ", exited with ", code,
                             "\n[run_mpi] exit time: ", Now(), "\n"));
}

}  // namespace taskd::modes
