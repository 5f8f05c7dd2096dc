// Calls a core as its connections do, and keeps its answers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/core.h"

namespace taskd::store {

class CoreClients {
 public:
  using Strings = std::vector<std::string>;
  struct Asked {
    uint64_t stream = 0;
    uint64_t id = 0;
    StoreCore::Result result = StoreCore::Result::kDone;
  };

  StoreCoreHost Host() {
    return {.answer =
                [this](const StoreCaller& caller, StoreAnswer answer) {
                  answers_[{caller.stream, caller.id}] = std::move(answer);
                },
            .resume = [this](uint64_t stream) { resumed_.push_back(stream); }};
  }

  void set_core(StoreCore* core) { core_ = core; }
  // Makes `stream` a tier; the others are clients that expect a new store for each try.
  void set_tier(uint64_t stream) { tiers_.push_back(stream); }

  Asked Ask(uint64_t stream, StoreOp op, Strings keys = {}, Strings values = {}, int64_t number = 0) {
    StoreCall call;
    call.caller = {.stream = stream, .id = ++last_id_, .op = op, .tier = IsTier(stream)};
    call.request = {.op = op, .keys = std::move(keys), .values = std::move(values), .number = number};
    call.of_this_try = of_this_try_ && !call.caller.tier;
    return {stream, call.caller.id, core_->Execute(call)};
  }
  // From now on calls are those of 1.x clients, which keep one store.
  void BeOld() { of_this_try_ = false; }

  // Returns nullopt while the call waits, and if there is no answer.
  std::optional<StoreAnswer> AnswerTo(const Asked& asked) {
    auto found = answers_.find({asked.stream, asked.id});
    if (found == answers_.end()) return std::nullopt;
    StoreAnswer answer = std::move(found->second);
    answers_.erase(found);
    return answer;
  }
  std::optional<StoreAnswer> AnswerOf(uint64_t stream, StoreOp op, Strings keys = {}, Strings values = {},
                                      int64_t number = 0) {
    return AnswerTo(Ask(stream, op, std::move(keys), std::move(values), number));
  }
  std::vector<uint64_t> TakeResumed() { return std::exchange(resumed_, {}); }

 private:
  bool IsTier(uint64_t stream) const {
    for (uint64_t tier : tiers_) {
      if (tier == stream) return true;
    }
    return false;
  }

  StoreCore* core_ = nullptr;
  std::vector<uint64_t> tiers_;
  bool of_this_try_ = true;
  uint64_t last_id_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, StoreAnswer> answers_;
  std::vector<uint64_t> resumed_;
};

}  // namespace taskd::store
