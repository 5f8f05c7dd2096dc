// Any verdicts, nodes, prices and clocks in any order: what is decided stays within the budget, names only a node that its
// verdict accuses by a name that is certain, and never twice; what is kept comes back. Any text as kept actions is refused
// or read.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "policy/policy.h"
#include "policy/render.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace taskd::policy;  // NOLINT(google-build-using-namespace): a program of its own
using taskd::diagnosis::Cause;
using taskd::diagnosis::Scope;
using taskd::diagnosis::Verdict;

constexpr int64_t kMinute = 60'000'000'000;
constexpr int kNodes = 5;

double NumberOf(uint8_t byte) {
  if (byte == 255) return std::numeric_limits<double>::quiet_NaN();
  if (byte == 254) return std::numeric_limits<double>::infinity();
  return byte == 253 ? -1 : std::ldexp(byte % 16, byte / 16);
}

std::string NameOf(int node) { return "n" + std::to_string(node); }

class Game {
 public:
  explicit Game(const uint8_t* head) {
    options_.on_slow = static_cast<OnSlow>(head[0] % 5);
    options_.when.open_steps = head[1] % 8;
    options_.when.confidence = head[2] / 300.0;
    options_.when.cost_percent = head[3] % 20;
    if (head[4] % 2 == 0) options_.remaining_h = head[4];
    options_.evictions = {1 + head[5] % 3, 1.0 + head[6] % 4, std::nullopt};
    if (head[7] % 2 == 0) options_.evictions.of_job = 1 + head[7] % 5;
    policy_.emplace(options_, 1, Policy::Kept());
    view_.report = &report_;
    view_.slots = 40;
    view_.unix_ns = 1'700'000'000'000'000'000;
    for (int node = 0; node < kNodes; ++node) SetNode(node, 1);
    report_.state = taskd::diagnosis::JobState::kSlow;
  }

  // Eight bytes an event.
  void Play(const uint8_t* in) {
    switch (in[0] % 12) {
      case 0:
      case 1:
        Open(in);
        break;
      case 2:
        Close(in[1], in[2] % 2 == 0);
        break;
      case 3:
        view_.unix_ns += (in[1] - 64) * kMinute;  // it may jump
        break;
      case 4:
        report_.step_ms = NumberOf(in[1]);
        report_.last_step += in[2];
        report_.state = static_cast<taskd::diagnosis::JobState>(in[3] % 3);
        break;
      case 5:
        view_.price.rank_s = NumberOf(in[1]);
        view_.ran_s = NumberOf(in[2]);
        view_.attempt_s = NumberOf(in[6]);
        view_.slots = in[3] - 1;
        view_.spares = in[4] % 2;
        view_.least_nodes = in[5] % (kNodes + 1);
        break;
      case 6:
        SetNode(in[1] % kNodes, in[2]);
        break;
      case 7:
        if (in[1] % 2 == 0) policy_->Pause();
        if (in[1] % 2 == 1) policy_->Allow();
        break;
      case 8:
        Person(in[1] % (kNodes + 1));
        break;
      case 9:
        if (const Action* action = Pick(in[1])) policy_->Cancel(std::string(action->id), view_.unix_ns).IgnoreError();
        break;
      case 10:
        if (const Action* action = Pick(in[1]); action != nullptr && action->decision == Decision::kOrder) {
          policy_->SetOrder(std::string(action->id),
                            {"r" + std::to_string(in[2] % 2), view_.unix_ns, static_cast<Outcome>(in[3] % 3), ""}, 2);
        }
        break;
      case 11: {
        absl::StatusOr<Policy::Kept> kept = ReadKept(RenderKept(policy_->kept()));
        FUZZ_CHECK(kept.ok() && kept->actions.size() == policy_->kept().actions.size());
        policy_.emplace(options_, 1, *std::move(kept));
        break;
      }
    }
    Judge();
  }

 private:
  void SetNode(int number, uint8_t kind) {
    std::erase_if(view_.nodes, [&](const Node& node) { return node.node == number; });
    if (kind % 4 == 0) return;
    const bool named = kind % 4 != 2;
    view_.nodes.push_back(
        {number, "h", named ? NameOf(number) : "", named ? "" : "not known", {number * 8, number * 8 + 7}});
  }

  void Open(const uint8_t* in) {
    if (report_.verdicts.size() > 300) report_.verdicts.erase(report_.verdicts.begin());
    Verdict& verdict = report_.verdicts.emplace_back();
    verdict.id = ++last_id_;
    verdict.scope = static_cast<Scope>(in[1] % 5);
    verdict.cause = static_cast<Cause>(in[2] % 12);
    verdict.confidence = in[3] == 255 ? std::nan("") : in[3] / 250.0;
    verdict.cost_ms_per_step = NumberOf(in[4]);
    verdict.since_step = report_.last_step - in[5] % 16;
    for (int i = 0; i <= in[6] % 3; ++i) {
      const int node = (in[7] + i) % kNodes;
      verdict.ids.push_back(verdict.scope == Scope::kNode ? node : node * 8);
      verdict.nodes.push_back({node, "h", "", NameOf(node)});
    }
    if (in[6] >= 250) verdict.nodes.clear();
  }

  void Close(uint8_t which, bool left) {
    if (report_.verdicts.empty()) return;
    Verdict& verdict = report_.verdicts[which % report_.verdicts.size()];
    verdict.open = false;
    verdict.left = left;
  }

  const Action* Pick(uint8_t which) const {
    const auto& actions = policy_->kept().actions;
    return actions.empty() ? nullptr : &actions[which % actions.size()];
  }

  void Person(int node) {
    const absl::StatusOr<Action> action = policy_->Evict(node, view_);
    if (!action.ok()) return;
    FUZZ_CHECK(action->node == node && action->node_name == NameOf(node));
    by_person_.insert(action->id);
    decided_.insert(action->id);
  }

  void Judge() {
    const size_t before = policy_->kept().evicted.size();
    int decided = 0;
    for (const std::string& id : policy_->Advance(view_)) {
      const Action* action = policy_->Find(id);
      FUZZ_CHECK(action != nullptr && !action->reason.empty() && action->verdict_id != 0);
      FUZZ_CHECK((action->decision == Decision::kNone) == action->refused_by.has_value());
      if (action->decision == Decision::kNone || action->state == State::kCalledOff) continue;
      FUZZ_CHECK(decided_.insert(id).second);
      ++decided;
      FUZZ_CHECK(action->node_name == NameOf(action->node) && action->promised.has_value());
      FUZZ_CHECK(action->promised->saves_rank_s > action->promised->price_rank_s);
      FUZZ_CHECK(verdicts_.insert(action->verdict_id).second);
      for (const Verdict& verdict : report_.verdicts) {
        if (verdict.id == action->verdict_id)
          FUZZ_CHECK(verdict.open && verdict.nodes.size() == 1 && verdict.nodes[0].rank == action->node);
      }
    }
    FUZZ_CHECK(options_.on_slow != OnSlow::kReport || decided == 0);
    FUZZ_CHECK(decided <= options_.evictions.nodes);
    if (decided > 0 && options_.evictions.of_job) {
      FUZZ_CHECK(policy_->kept().evicted.size() <=
                 std::max<size_t>(before, static_cast<size_t>(*options_.evictions.of_job)));
    }
    FUZZ_CHECK(policy_->kept().actions.size() <= Policy::kMaxActions);
    for (const char* to : {"r0", "r1", "command"}) {
      const std::optional<Policy::Due> due = policy_->NextOrder(to);
      if (!due) continue;
      const Action* action = policy_->Find(due->id);
      FUZZ_CHECK(action != nullptr && action->decision == Decision::kOrder);
      FUZZ_CHECK(due->withdraw == (action->state == State::kCalledOff));
      FUZZ_CHECK(due->withdraw || (action->state != State::kDone && action->state != State::kFailed));
    }
    for (int node = -1; node <= kNodes; ++node) policy_->Why(node, view_).status().IgnoreError();
    FUZZ_CHECK(RenderText(RenderJson(policy_->kept(), options_, policy_->RemainingS(view_), "")).ok());
  }

  Options options_;
  std::optional<Policy> policy_;
  taskd::diagnosis::Report report_;
  View view_;
  uint64_t last_id_ = 0;
  std::set<std::string> decided_, by_person_;
  std::set<uint64_t> verdicts_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadKept(text).status().IgnoreError();
  RenderText(text).status().IgnoreError();
  ParseWhen(std::string(text)).status().IgnoreError();
  ParseEvictions(std::string(text)).status().IgnoreError();
  taskd::ParseOrderTo(std::string(text)).status().IgnoreError();
  if (size < 8) return 0;
  Game game(data);
  for (size_t i = 8; i + 8 <= size && i < 8 * 400; i += 8) game.Play(data + i);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::string game("\x02\x04\xd2\x02\x01\x00\x00\x01", 8);
  for (const std::string& event :
       {std::string("\x04\x6a\x40\x02\0\0\0\0", 8), std::string("\x05\x11\x99\x29\0\0\0\0", 8),
        std::string("\x00\x00\x00\xfa\x55\x08\x00\x03", 8), std::string("\x0a\0\0\1\0\0\0\0", 8),
        std::string("\x02\0\0\0\0\0\0\0", 8), std::string("\x0b\0\0\0\0\0\0\0", 8),
        std::string("\x08\x01\0\0\0\0\0\0", 8), std::string("\x06\x03\x02\0\0\0\0\0", 8)}) {
    game += event + event;
  }
  Policy::Kept kept;
  kept.evicted = {{"a", "n1", 7}};
  kept.actions.emplace_back().id = "a";
  kept.actions[0].refused_by = Refusal::kScope;
  kept.actions.emplace_back().id = "b";
  kept.actions[1].decision = Decision::kOrder;
  kept.actions[1].promised = Promise{1, 2, 3, 4};
  kept.actions[1].orders = {{"nvrx", 7, Outcome::kTaken, "written"}};
  return {game, game + game, RenderKept(kept), RenderJson(kept, Options(), 60, ""), Text(When()), "2/24"};
}
