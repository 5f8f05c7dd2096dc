#include "agent/stacks/stack_collector.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/stacks/elf_symbols.h"
#include "agent/stacks/proc_facts.h"
#include "common/files.h"
#include "common/runtime_dir.h"
#include "taskd/own_user.h"
#include "taskd/stack_dump.h"

namespace taskd::stacks {
namespace {

constexpr int64_t kPollNs = 5'000'000;
constexpr size_t kMaxAnswerBytes = size_t{64} * 1024;
constexpr size_t kMaxPythonBytes = size_t{1024} * 1024;
constexpr size_t kMaxFamily = 64;  // processes of one rank that are looked through for the armed one
constexpr size_t kMaxPythonFrames = 100;
constexpr char kStopped[] = "stopped";
constexpr char kEnded[] = "has ended";

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Python's own, an installed package, or ours.
bool IsLibrary(absl::string_view path) {
  for (const char* part :
       {"/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", "<frozen ", "/taskd/torch/"}) {
    if (absl::StrContains(path, part)) return true;
  }
  return false;
}

void Pause() {
  timespec pause{0, kPollNs};
  nanosleep(&pause, nullptr);
}

// At most `limit` bytes. Ranks have made the file: it may be anything.
std::string ReadFrom(const std::string& path, uint64_t offset, size_t limit) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY);
  return file.ok() ? ReadSome(file->get(), limit, offset) : "";
}

uint64_t SizeOf(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool Queue(pid_t pid, pid_t tid, int signal, uint64_t value) {
  siginfo_t info = {};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(value);
  return syscall(SYS_rt_tgsigqueueinfo, pid, tid, signal, &info) == 0;
}

// Why a thread in this state (of ProcStatus) does not answer; empty: it can.
std::string WhySilent(const std::string& state) {
  if (state == "T" || state == "t") return kStopped;
  return state.empty() || state == "Z" || state == "X" ? kEnded : "";
}

// What a thread wrote.
struct Answer {
  bool whole = false;
  bool cut = false;
  bool short_stack = false;
  uint64_t self = 0;
  std::vector<AddressNamer::Address> frames;
};

Answer ParseAnswer(const std::string& text) {
  Answer answer;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t value = 0;
    if (line == "end") {
      answer.whole = true;
    } else if (line == "more") {
      answer.cut = true;
    } else if (line == "short") {
      answer.short_stack = true;
    } else if (!absl::SimpleHexAtoi(words.second, &value)) {
      continue;
    } else if (words.first == "self") {
      answer.self = value;
    } else if (words.first == "at" || words.first == "from") {
      if (answer.frames.size() < 2 * kMaxStackFrames) answer.frames.push_back({value, words.first == "from"});
    }
  }
  return answer;
}

// One process on its way to its RankStacks.
struct Asked {
  RankStacks stacks;
  bool armed = false;
  bool python = false;
  uint64_t python_begin = 0;  // of its file: what earlier collections left there
  bool python_done = false;
  std::set<pid_t> waiting;
  std::map<pid_t, Answer> answers;
};

class Collection {
 public:
  Collection(std::string folder, int64_t deadline_ns) : folder_(std::move(folder)), deadline_ns_(deadline_ns) {
    // Numbers of this launcher's life; a folder of an earlier one with the same number holds a late answer
    // at most.
    static std::atomic<uint64_t> next{0};
    number_ = static_cast<uint64_t>(NowNs()) << 8 | (next++ & 0xff);
    answers_ = absl::StrFormat("%s/%x", folder_, number_);
    can_ask_ = mkdir(answers_.c_str(), 0700) == 0;
  }
  ~Collection() {
    std::error_code error;
    if (can_ask_) std::filesystem::remove_all(answers_, error);
  }

  void Begin(int rank, int node, pid_t pid) {
    Asked& asked = asked_.emplace_back();
    asked.stacks.rank = rank;
    asked.stacks.node = node;
    asked.stacks.pid = Armed(pid);
    asked.stacks.command = ReadComm(asked.stacks.pid);
    asked.stacks.threads = ReadThreads(asked.stacks.pid, kMaxStackThreads);
    if (asked.stacks.threads.empty() || asked.stacks.threads[0].state == "Z") {
      asked.stacks.note = "its process has ended";
    }
  }

  // Python first, and alone: else its handler would be in the native frames of the main thread.
  void AskPython() {
    for (Asked& asked : asked_) {
      const pid_t pid = asked.stacks.pid;
      const std::string path = PythonFile(pid);
      if (asked.stacks.threads.empty() || !Exists(path)) continue;
      const ProcStatus status = ReadStatus(pid, pid);
      if (!status.Catches(PythonStackSignal()) || status.Blocks(PythonStackSignal()) ||
          !WhySilent(status.state).empty()) {
        continue;
      }
      asked.python_begin = SizeOf(path);
      asked.python = Queue(pid, pid, PythonStackSignal(), number_);
    }
    const int64_t begin_ns = NowNs();
    const int64_t end_ns = begin_ns + (deadline_ns_ - begin_ns) / 2;  // the rest is for the threads' own
    for (bool waiting = true; waiting && NowNs() < end_ns;) {
      waiting = false;
      for (Asked& asked : asked_) {
        if (!asked.python || asked.python_done) continue;
        asked.python_done = PythonIsDone(asked);
        waiting = waiting || !asked.python_done;
      }
      if (waiting) Pause();
    }
  }

  void AskThreads() {
    for (Asked& asked : asked_) {
      if (!asked.stacks.note.empty()) continue;
      const pid_t pid = asked.stacks.pid;
      asked.armed = can_ask_ && Exists(absl::StrCat(folder_, "/", pid, ".armed"));
      if (!asked.armed) {
        asked.stacks.note = "libtaskd.so does not answer in it: only what /proc says";
        continue;
      }
      for (ThreadStack& thread : asked.stacks.threads) {
        const ProcStatus status = ReadStatus(pid, thread.tid);
        thread.note = WhySilent(status.state);
        if (!thread.note.empty()) continue;
        if (!status.Catches(StackSignal())) {
          thread.note = "its program does not take the signal";
        } else if (status.Blocks(StackSignal())) {
          thread.note = "blocks the signal";
        } else if (Queue(pid, thread.tid, StackSignal(), number_)) {
          asked.waiting.insert(thread.tid);
        } else {
          thread.note = errno == EAGAIN ? "its signal queue is full" : kEnded;
        }
      }
    }
  }

  void Gather() {
    for (bool waiting = true; waiting;) {
      waiting = false;
      for (Asked& asked : asked_) {
        for (ThreadStack& thread : asked.stacks.threads) {
          if (asked.waiting.count(thread.tid) != 0 && !IsWaitedFor(asked, thread)) asked.waiting.erase(thread.tid);
        }
        waiting = waiting || !asked.waiting.empty();
      }
      if (NowNs() >= deadline_ns_) break;
      if (waiting) Pause();
    }
  }

  std::vector<RankStacks> Finish() {
    std::vector<RankStacks> result;
    for (Asked& asked : asked_) {
      NameFrames(asked);
      NoteIfStopped(asked.stacks);
      AddPython(asked);
      result.push_back(std::move(asked.stacks));
    }
    return result;
  }

 private:
  std::string PythonFile(pid_t pid) const { return absl::StrCat(folder_, "/", pid, ".py"); }

  // Until it has answered, has ended or was stopped.
  bool IsWaitedFor(Asked& asked, ThreadStack& thread) const {
    const pid_t pid = asked.stacks.pid;
    const std::string path = absl::StrCat(answers_, "/", pid, ".", thread.tid);
    Answer answer = Exists(path) ? ParseAnswer(ReadFrom(path, 0, kMaxAnswerBytes)) : Answer{};
    if (answer.whole) {
      asked.answers[thread.tid] = std::move(answer);
      return false;
    }
    thread.note = WhySilent(ReadStatus(pid, thread.tid).state);
    return thread.note.empty();
  }

  // Its handler began, for it has written, and has ended: while it runs its signal is blocked.
  bool PythonIsDone(const Asked& asked) const {
    const pid_t pid = asked.stacks.pid;
    if (SizeOf(PythonFile(pid)) == asked.python_begin) return !Exists(absl::StrCat("/proc/", pid));
    const ProcStatus status = ReadStatus(pid, pid);
    return !status.Blocks(PythonStackSignal()) && !status.Awaits(PythonStackSignal());
  }

  // A rank is often a shell that starts the training: the first of its family with Python, else the first armed one
  // that is no shell; parents before children.
  pid_t Armed(pid_t pid) const {
    std::vector<pid_t> family = {pid};
    for (size_t i = 0; i < family.size(); ++i) {
      if (Exists(PythonFile(family[i]))) return family[i];
      for (pid_t child : ReadChildren(family[i])) {
        if (family.size() < kMaxFamily) family.push_back(child);
      }
    }
    for (pid_t member : family) {
      const std::string name = ReadComm(member);
      const bool shell = name == "sh" || name == "bash" || name == "dash" || name == "zsh";
      if (!shell && Exists(absl::StrCat(folder_, "/", member, ".armed"))) return member;
    }
    return pid;
  }

  static void NameFrames(Asked& asked) {
    std::vector<AddressNamer::Address> all;
    for (const auto& [tid, answer] : asked.answers) all.insert(all.end(), answer.frames.begin(), answer.frames.end());
    std::map<uint64_t, std::string> names;
    if (!all.empty()) names = AddressNamer(asked.stacks.pid).Name(all);
    for (ThreadStack& thread : asked.stacks.threads) {
      auto answer = asked.answers.find(thread.tid);
      if (answer == asked.answers.end()) {
        if (asked.armed && thread.note.empty()) thread.note = "has not answered in time";
        continue;
      }
      for (const AddressNamer::Address& frame : answer->second.frames) {
        thread.native.push_back(names[frame.address]);
      }
      if (answer->second.cut) thread.note = "more frames follow";
      if (answer->second.short_stack) thread.note = "its signal stack is too small to see more";
    }
  }

  static void NoteIfStopped(RankStacks& stacks) {
    if (stacks.threads.empty() || !stacks.note.empty()) return;
    const bool stopped = std::all_of(stacks.threads.begin(), stacks.threads.end(),
                                     [](const ThreadStack& thread) { return thread.note == kStopped; });
    if (stopped) stacks.note = "stopped: only what /proc says";
  }

  // "Thread 0x00007f2b5e7fc6c0 (most recent call first):" and below it "  File "/a/b.py", line 320 in wait".
  void AddPython(Asked& asked) const {
    if (!asked.python) return;
    const std::string text = ReadFrom(PythonFile(asked.stacks.pid), asked.python_begin, kMaxPythonBytes);
    ThreadStack* thread = nullptr;
    std::vector<ThreadStack> others;  // known to Python only
    others.reserve(128);
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      size_t at = line.find("hread 0x");
      uint64_t self = 0;
      if (at != absl::string_view::npos && line[0] != ' ') {
        absl::string_view digits = line.substr(at + 8);
        digits = digits.substr(0, digits.find_first_not_of("0123456789abcdefABCDEF"));
        thread = nullptr;
        if (!absl::SimpleHexAtoi(digits, &self)) continue;
        for (const auto& [tid, answer] : asked.answers) {
          if (answer.self != self) continue;
          auto found = std::find_if(asked.stacks.threads.begin(), asked.stacks.threads.end(),
                                    [tid = tid](const ThreadStack& candidate) { return candidate.tid == tid; });
          if (found != asked.stacks.threads.end()) thread = &*found;
        }
        // The signal was the main thread's.
        if (thread == nullptr && absl::StartsWith(line, "Current")) thread = &asked.stacks.threads[0];
        if (thread == nullptr && others.size() < others.capacity()) {
          thread = &others.emplace_back();
          thread->name = "python";
        }
      } else if (thread != nullptr && absl::StartsWith(line, "  File \"") && thread->python.size() < kMaxPythonFrames) {
        const size_t quote = line.rfind("\", line ");
        if (quote == absl::string_view::npos || quote < 8) continue;
        const absl::string_view path = line.substr(8, quote - 8);
        const std::pair<absl::string_view, absl::string_view> rest =
            absl::StrSplit(line.substr(quote + 8), absl::MaxSplits(" in ", 1));
        thread->python.push_back(
            absl::StrCat(rest.second, " (", path.substr(path.rfind('/') + 1), ":", rest.first, ")"));
        if (thread->script.empty() && !IsLibrary(path)) thread->script = thread->python.back();
      }
    }
    std::move(others.begin(), others.end(), std::back_inserter(asked.stacks.threads));
  }

  const std::string folder_;
  const int64_t deadline_ns_;
  uint64_t number_ = 0;
  std::string answers_;
  bool can_ask_ = false;
  std::vector<Asked> asked_;
};

}  // namespace

std::vector<RankStacks> CollectStacks(const std::map<int, pid_t>& pids, int node, const std::string& folder,
                                      int64_t timeout_ns) {
  Collection collection(folder, NowNs() + timeout_ns);
  for (const auto& [rank, pid] : pids) collection.Begin(rank, node, pid);
  collection.AskPython();
  collection.AskThreads();
  collection.Gather();
  return collection.Finish();
}

absl::Status PrepareStackFolder(const std::string& folder) {
  absl::StatusOr<UniqueFd> own = OpenOwnDir(folder, true);
  if (!own.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("folder for stacks ", folder, ": ", own.status().message()));
  }
  // Stacks name functions and modules: not for others to read either.
  struct stat status;
  if (fstat(own->get(), &status) != 0 || !IsOwnUser(status.st_uid) || (status.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("folder for stacks ", folder, ": is not a folder that only user ", geteuid(), " can use"));
  }
  return absl::OkStatus();
}

StackCollection::StackCollection(std::map<int, pid_t> pids, int node, std::string folder, int64_t timeout_ns,
                                 std::function<void(std::vector<RankStacks>)> done)
    : thread_([pids = std::move(pids), node, folder = std::move(folder), timeout_ns, done = std::move(done)] {
        done(CollectStacks(pids, node, folder, timeout_ns));
      }) {}

StackCollection::~StackCollection() { thread_.join(); }

}  // namespace taskd::stacks
