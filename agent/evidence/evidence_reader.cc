#include "agent/evidence/evidence_reader.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/evidence/dump_files.h"
#include "agent/evidence/node_evidence.h"
#include "agent/evidence/ras_client.h"
#include "readers/byte_source.h"
#include "readers/nccl_ras.h"
#include "readers/source_files.h"

namespace taskd::evidence {
namespace {

using readers::RasAnswers;
using readers::RasState;

constexpr std::chrono::milliseconds kRasTimeout{4000};  // of one answer
// One answer cannot say whether a job stands still. Their times have whole seconds.
constexpr std::chrono::milliseconds kBetweenAnswers{2000};
// A rank has some 300 bytes in each of its communicators.
constexpr size_t kRasBytes = size_t{1} << 20;
constexpr size_t kRasBytesOfRank = 4096;
constexpr size_t kMostRasBytes = size_t{64} << 20;
constexpr int kMaxParents = 64;
constexpr int64_t kSameBeginNs = 20'000'000'000;      // what a message may be late, and clocks be set
constexpr std::chrono::seconds kBetweenDumpLooks{1};  // a file that has not changed for so long is whole

// Of /proc; 0: it has ended.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name may have any character
  if (name_end == std::string::npos || name_end + 4 > line.size()) return 0;
  return static_cast<pid_t>(std::strtol(line.c_str() + name_end + 4, nullptr, 10));  // behind ") S "
}

// One of the processes is a rank of this node, or was started by one: jobs of one user may share RAS's port.
bool IsOfThisJob(const RasState& state, const std::map<int, pid_t>& ranks) {
  std::set<pid_t> own;
  for (const auto& [rank, pid] : ranks) own.insert(pid);
  return std::any_of(state.pids.begin(), state.pids.end(), [&own](pid_t pid) {
    for (int i = 0; i < kMaxParents && pid > 1; ++i, pid = ParentOf(pid)) {
      if (own.contains(pid)) return true;
    }
    return false;
  });
}

// NOT_FOUND: nobody listens.
absl::StatusOr<RasState> AskOnce(const HostPort& address, const EvidenceReader::Wish& wish) {
  const size_t ranks = static_cast<size_t>(std::max(wish.world_size, 0));
  absl::StatusOr<std::string> text =
      AskRas(address, std::min(kMostRasBytes, kRasBytes + ranks * kRasBytesOfRank), kRasTimeout);
  if (!text.ok()) return text.status();
  readers::ByteSource source = readers::ByteSource::Of(*std::move(text));
  RasAnswers answers = readers::ReadRasAnswers(source);
  if (answers.states.empty()) {
    return absl::UnavailableError(answers.note.empty() ? "its answer is cut" : answers.note);
  }
  if (!IsOfThisJob(answers.states.back(), wish.ranks)) {
    return absl::UnavailableError("its answer has no process of this node's ranks");
  }
  return std::move(answers.states.back());
}

void AskTwice(const HostPort& address, const EvidenceReader::Wish& wish, NodeEvidence& evidence) {
  RasEvidence ras;
  readers::Source source;
  source.path = FormatHostPort(address);
  source.format = readers::SourceFormat::kNcclRas;
  std::vector<RasState> states;
  for (int i = 0; i < 2; ++i) {
    if (i > 0) std::this_thread::sleep_for(kBetweenAnswers);
    absl::StatusOr<RasState> state = AskOnce(address, wish);
    if (!state.ok()) {
      if (!absl::IsNotFound(state.status()) || i > 0) source.note = std::string(state.status().message());
      break;
    }
    readers::AddRasState(*std::move(state), states);
    ++source.records;
  }
  if (source.records == 2) {
    readers::RasFinding finding = readers::JudgeRas(states);
    ras.has_answered = true;
    ras.hang = std::move(finding.hang);
    ras.notes = std::move(finding.notes);
  } else if (!source.note.empty()) {
    ras.notes.push_back(absl::StrCat("NCCL RAS at ", source.path, ": ", source.note));
  }
  evidence.ras = std::move(ras);
  if (source.records > 0 || !source.note.empty()) evidence.sources.push_back(std::move(source));
}

}  // namespace

// Of one hang. All but what is under the mutex belongs to the thread that looks.
struct EvidenceReader::State {
  State(const Environment& environment, const Wish& wish, bool may_ask)
      : hang(wish.hang), since_ns(wish.since_ns), may_ask_ras(may_ask), ras_address(RasAddress(environment)) {
    std::vector<int> ranks;
    for (const auto& [rank, pid] : wish.ranks) ranks.push_back(rank);
    dumps = std::make_unique<DumpFiles>(DumpPrefixes(environment), std::move(ranks), wish.world_size, wish.since_ns);
  }

  const uint64_t hang;
  const int64_t since_ns;
  const bool may_ask_ras;
  const absl::StatusOr<HostPort> ras_address;
  std::unique_ptr<DumpFiles> dumps;
  std::chrono::steady_clock::time_point look_at;
  NodeEvidence ras;  // what RAS has brought

  std::mutex mutex;
  bool is_looking = false;
  std::string news;

  void Publish(const Wish& wish) {
    NodeEvidence evidence;
    evidence.first_rank = wish.ranks.empty() ? 0 : wish.ranks.begin()->first;
    evidence.facts = dumps->facts();
    evidence.sources = dumps->sources();
    evidence.sources.insert(evidence.sources.end(), ras.sources.begin(), ras.sources.end());
    evidence.ras = ras.ras;
    std::string text = EncodeEvidence(evidence);
    const std::lock_guard lock(mutex);
    news = std::move(text);
  }
};

EvidenceReader::EvidenceReader(Environment environment, bool may_ask_ras)
    : environment_(std::move(environment)), may_ask_ras_(may_ask_ras) {}

void EvidenceReader::LookOnce(const std::shared_ptr<State>& state, const Wish& wish) {
  if (const auto now = std::chrono::steady_clock::now(); now >= state->look_at) {
    state->look_at = now + kBetweenDumpLooks;
    if (state->dumps->Look()) state->Publish(wish);
  }
  if (!wish.asks_ras || state->ras.ras) return;
  if (state->may_ask_ras && state->ras_address.ok()) {
    AskTwice(*state->ras_address, wish, state->ras);
  } else {
    state->ras.ras.emplace();
    if (state->may_ask_ras && absl::IsInvalidArgument(state->ras_address.status())) {
      state->ras.ras->notes.emplace_back(state->ras_address.status().message());
    }
  }
  state->Publish(wish);
}

std::string EvidenceReader::Look(const Wish& wish) {
  // A manager that was started anew counts anew.
  if (state_ == nullptr || state_->hang != wish.hang || wish.since_ns > state_->since_ns + kSameBeginNs) {
    state_ = std::make_shared<State>(environment_, wish, may_ask_ras_);
  }
  const std::lock_guard lock(state_->mutex);
  if (!state_->is_looking) {
    try {
      std::thread([state = state_, wish] {
        LookOnce(state, wish);
        const std::lock_guard lock(state->mutex);
        state->is_looking = false;
      }).detach();
      state_->is_looking = true;
    } catch (const std::system_error&) {  // no thread is left: the next call tries again
    }
  }
  return std::exchange(state_->news, "");
}

}  // namespace taskd::evidence
