// What nodes and callers tell the manager's cores, in any order, of any peer, at any time: nobody hears anything after
// its last word, or without having come, and what is kept is bounded.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "manager/job/job_link_core.h"
#include "manager/job/route_agreement.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace taskd::manager;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::string Text() {
    const uint8_t byte = Byte();
    if (byte == 255) return std::string(3000, 'x');
    return std::string(byte % 4, static_cast<char>('a' + byte % 3));
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Who may be told something.
class Listeners {
 public:
  void Come(uint64_t peer) { here_.insert(peer); }
  void Go(uint64_t peer) { here_.erase(peer); }
  bool Has(uint64_t peer) const { return here_.count(peer) != 0; }

 private:
  std::set<uint64_t> here_;
};

// Nodes are the peers 1 to 16, callers 17 to 24. A stream's number is used once, so each life has its own.
class JobLink {
 public:
  explicit JobLink(bool hosted) : core_({hosted}) {}

  void Turn(Input& input) {
    const uint8_t what = input.Byte();
    const size_t which = input.Byte() % kPeers;
    now_ns_ += int64_t{input.Byte()} * 100'000'000;
    const bool caller = which >= kNodes;
    const uint64_t peer = Peer(which);
    switch (what % 11) {
      case 0:
      case 1:
        if (!caller) Join(peer, input);
        break;
      case 2:
        Take(core_.Ready(peer, now_ns_));
        break;
      case 3:
        Take(core_.Ended(peer, {input.Byte() % 3 == 0 ? input.Byte() - 5 : 0, input.Text()}, now_ns_));
        break;
      case 4:
        Take(core_.Mpirun(peer, {input.Byte() % 4u, input.Byte() % 2 == 0, input.Byte()}, now_ns_));
        break;
      case 5:
        Take(core_.Answer(peer, ReadAnswer(input), now_ns_));
        break;
      case 6:
        if (!caller) break;
        listeners_.Come(peer);
        Take(core_.Call(peer, input.Text(), input.Text(), now_ns_));
        break;
      case 7:
        Take(core_.Input(peer, input.Text(), now_ns_));
        break;
      case 8:
        Take(core_.InputEnd(peer, now_ns_));
        break;
      case 9:
        listeners_.Go(peer);
        lives_[which] += kPeers;
        Take(core_.Lost(peer, now_ns_));
        break;
      default:
        now_ns_ += int64_t{input.Byte()} * 1'000'000'000;
        Take(core_.Tick(now_ns_));
    }
    FUZZ_CHECK(core_.queued_bytes(peer) <= 2 * JobLimits::kMaxQueuedBytes);
  }

  void Finish() {
    for (int second = 0; second < 30; ++second) Take(core_.Tick(now_ns_ += 1'000'000'000));
  }

 private:
  static constexpr size_t kNodes = 16, kPeers = 24;

  uint64_t Peer(size_t which) const { return lives_[which] + which + 1; }

  void Join(uint64_t peer, Input& input) {
    if (listeners_.Has(peer)) return;  // the service takes one join of a stream
    JobJoin join;
    join.index = input.Byte() % 8 == 7 ? input.Byte() * 1000u : input.Byte() % 4;
    join.nodes = input.Byte() % 8 == 7 ? input.Byte() * 1000u : 3;
    join.name = input.Text();
    join.addresses = {input.Text(), join.name};
    const uint8_t flags = input.Byte();
    join.serves = (flags & 1) != 0;
    join.ready = (flags & 2) != 0;
    if ((flags & 12) == 12) join.ended = JobEnd{flags >> 4, input.Text()};
    join.run_id = input.Text();
    join.plan = flags > 200 ? input.Text() : "plan";
    listeners_.Come(peer);
    Take(core_.Join(peer, std::move(join), now_ns_));
  }

  RemoteAnswer ReadAnswer(Input& input) {
    RemoteAnswer answer;
    answer.id = input.Byte() % 8;
    answer.kind = static_cast<RemoteAnswer::Kind>(input.Byte() % 3);
    answer.data = input.Text();
    answer.code = input.Byte();
    return answer;
  }

  void Take(const JobOutputs& outputs) {
    for (const JobOutput& output : outputs) {
      FUZZ_CHECK(listeners_.Has(output.peer));
      size_t data = 0;
      uint64_t id = 0;
      if (const auto* state = std::get_if<JobState>(&output.message)) {
        FUZZ_CHECK(state->missing.size() <= JobLimits::kMaxMissingListed && state->connected <= JobLimits::kMaxNodes);
      } else if (const auto* end = std::get_if<JobEnd>(&output.message)) {
        FUZZ_CHECK(end->code >= 0 && end->code <= 255 && end->reason.size() <= 4 * JobLimits::kMaxTextBytes);
      } else if (const auto* refusal = std::get_if<JobRefusal>(&output.message)) {
        FUZZ_CHECK(!refusal->text.empty() && refusal->text.size() <= 4 * JobLimits::kMaxTextBytes);
        listeners_.Go(output.peer);
      } else if (const auto* stream_end = std::get_if<StreamEnd>(&output.message)) {
        FUZZ_CHECK(!stream_end->status.ok() && !stream_end->status.message().empty());
        listeners_.Go(output.peer);
      } else if (const auto* order = std::get_if<RemoteOrder>(&output.message)) {
        id = order->id;
        data = order->data.size();
      } else if (const auto* answer = std::get_if<RemoteAnswer>(&output.message)) {
        id = answer->id;
        data = answer->data.size();
        if (answer->kind == RemoteAnswer::Kind::kEnded) listeners_.Go(output.peer);
      }
      if (id != 0) core_.Sent(id, data);
    }
  }

  JobLinkCore core_;
  Listeners listeners_;
  uint64_t lives_[kPeers] = {};
  int64_t now_ns_ = 1;
};

class Agreement {
 public:
  void Turn(Input& input) {
    const uint8_t what = input.Byte();
    const size_t which = input.Byte() % kPeers;
    now_ += std::chrono::milliseconds(input.Byte() * 20);
    const uint64_t peer = lives_[which] + which + 1;
    std::vector<RouteAgreementCore::Output> out;
    switch (what % 6) {
      case 0:
      case 1: {
        RouteProposal proposal;
        proposal.nodes = input.Byte() % 8 == 7 ? input.Byte() * 1000u : 3;
        proposal.index = input.Byte() % 8 == 7 ? input.Byte() * 1000u : input.Byte() % 4;
        proposal.table_digest = std::string(64, static_cast<char>('a' + input.Byte() % 2));
        proposal.plan_digest = std::string(64, static_cast<char>('a' + input.Byte() % 2));
        if (input.Byte() % 8 == 0) proposal.reason = input.Text();
        if (input.Byte() % 8 == 0) proposal.in_doubt = 40 + input.Byte() % 8;
        listeners_.Come(peer);
        core_.Propose(peer, std::move(proposal), now_, &out);
        break;
      }
      case 2:
        core_.Acknowledge(peer, now_, &out);
        break;
      case 3:
        core_.Written(peer);
        break;
      case 4:
        listeners_.Go(peer);
        lives_[which] += kPeers;
        core_.Gone(peer, now_, &out);
        break;
      default:
        now_ += std::chrono::seconds(input.Byte());
        core_.Tick(now_, &out);
    }
    Take(out);
  }

 private:
  static constexpr size_t kPeers = 8;

  void Take(const std::vector<RouteAgreementCore::Output>& out) {
    for (const auto& [peer, verdict] : out) {
      FUZZ_CHECK(listeners_.Has(peer));
      FUZZ_CHECK(verdict.missing.size() <= RouteAgreementCore::kMaxMissing);
      FUZZ_CHECK(verdict.reason.size() <= 4 * RouteAgreementCore::kMaxReasonBytes);
      FUZZ_CHECK(verdict.reason.find('\n') == std::string::npos);
      switch (verdict.kind) {
        case RouteVerdict::Kind::kRefused:
          FUZZ_CHECK(!verdict.reason.empty());
          // Its first one still holds; the service ends the stream.
          if (verdict.reason != "a second proposal") listeners_.Go(peer);
          break;
        case RouteVerdict::Kind::kIdentity:
        case RouteVerdict::Kind::kUnknownRound:
          FUZZ_CHECK(!verdict.reason.empty());
          listeners_.Go(peer);
          break;
        case RouteVerdict::Kind::kPrepare:
          FUZZ_CHECK(verdict.round != 0);
          break;
        default:
          break;
      }
    }
  }

  RouteAgreementCore core_{41};
  Listeners listeners_;
  uint64_t lives_[kPeers] = {};
  RouteAgreementCore::Time now_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  Input input(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    JobLink link((data[0] & 2) != 0);
    while (!input.empty()) link.Turn(input);
    link.Finish();
  } else {
    Agreement agreement;
    while (!input.empty()) agreement.Turn(input);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  uint64_t state = 88172645463325252;
  for (int seed = 0; seed < 12; ++seed) {
    std::string calls(1, static_cast<char>(seed % 4));
    for (int i = 0; i < 600; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      calls += static_cast<char>(state >> 32);
    }
    seeds.push_back(std::move(calls));
  }
  return seeds;
}
