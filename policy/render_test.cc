#include "policy/render.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::policy {
namespace {

using ::testing::HasSubstr;

Policy::Kept TwoActions() {
  Policy::Kept kept;
  Action refused;
  refused.id = "00000000000000aa";
  refused.time_ns = 1'767'225'600'000'000'000;
  refused.verdict_id = 3;
  refused.verdict = "the fabric is slow";
  refused.refused_by = Refusal::kScope;
  refused.reason = "the verdict is about a job, not about a node";
  Action ordered;
  ordered.id = "00000000000000bb";
  ordered.time_ns = 1'767'225'660'500'000'000;
  ordered.verdict_id = 4;
  ordered.node = 3;
  ordered.host = "train-3";
  ordered.node_name = "n3";
  ordered.ranks = {24, 31};
  ordered.verdict = "rank 25 is slow";
  ordered.decision = Decision::kOrder;
  ordered.reason = "it pays";
  ordered.state = State::kDone;
  ordered.promised = Promise{11.4, 36000, 13132.8, 3200};
  ordered.orders = {{"nvrx:/shared", 1'767'225'661'000'000'000, Outcome::kTaken, "written"}};
  kept.actions = {refused, ordered};
  return kept;
}

TEST(RenderTest, IsTheInterfacesObject) {
  Options options;
  options.on_slow = OnSlow::kOrder;
  EXPECT_EQ(
      RenderJson(TwoActions(), options, 12 * 3600, ""),
      R"({"schema":1,"policy":{"on_slow":"order","when":{"cause":["compute","memory","dataloader","host","network"],)"
      R"("confidence":0.95,"open_steps":50,"cost_percent":5.0},"remaining_h":12.0,"evictions":"1/1"},"paused":false,)"
      R"("summary":"2 decisions, 1 to pay 2.76 rank-hours, 1 refused: scope","no_node_name":null,"actions":[)"
      R"({"id":"00000000000000bb","time":"2026-01-01T00:01:00.500Z","trigger":"verdict","node":3,"host":"train-3",)"
      R"("node_name":"n3","ranks":[24,31],"verdict":"rank 25 is slow","decision":"order","refused_by":null,)"
      R"("reason":"it pays","state":"done","moment":null,"promised":{"saves_ms_per_step":11.4,"steps":36000,)"
      R"("saves_rank_s":13132.8,"price_rank_s":3200.0},"orders":[{"to":"nvrx:/shared","time":"2026-01-01T00:01:01.000Z",)"
      R"("outcome":"taken","text":"written"}],"measured":null},)"
      R"({"id":"00000000000000aa","time":"2026-01-01T00:00:00.000Z","trigger":"verdict","node":null,"host":"",)"
      R"("node_name":"","ranks":null,"verdict":"the fabric is slow","decision":"none","refused_by":"scope",)"
      R"("reason":"the verdict is about a job, not about a node","state":"decided","moment":null,"promised":null,)"
      R"("orders":[],"measured":null}]})");
}

TEST(RenderTest, TextHasTheSentenceAndEachReason) {
  Options options;
  options.on_slow = OnSlow::kRehearse;
  const absl::StatusOr<std::string> text =
      RenderText(RenderJson(TwoActions(), options, 0, "node 1: TASKD_NODE_NAME is not set"));
  ASSERT_TRUE(text.ok()) << text.status();
  for (const char* part : {"on slow: rehearse; 2 decisions", "TASKD_NODE_NAME", "order, done\n  it pays",
                           "refused: scope\n  the verdict is about", "nvrx:/shared: taken, written"}) {
    EXPECT_THAT(*text, HasSubstr(part));
  }
  EXPECT_FALSE(RenderText("{}").ok());
  EXPECT_FALSE(RenderText("[").ok());
}

TEST(RenderTest, WhatIsKeptComesBack) {
  Policy::Kept kept = TwoActions();
  kept.paused = true;
  kept.next_id = 9;
  kept.evicted = {{"00000000000000bb", "n3", 17}};
  absl::StatusOr<Policy::Kept> read = ReadKept(RenderKept(kept));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, kept);
  EXPECT_EQ(*ReadKept(RenderKept({})), Policy::Kept());
}

TEST(RenderTest, WhatIsNoStateIsRefused) {
  const std::string good = RenderKept(TwoActions());
  for (const auto& [from, to] :
       {std::pair("\"schema\":1", "\"schema\":2"), std::pair("\"order\"", "\"explode\""), std::pair("\"scope\"", "7"),
        std::pair("[24,31]", "[24]"), std::pair("36000", "\"x\"")}) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    bad.replace(bad.find(from), std::string(from).size(), to);
    EXPECT_FALSE(ReadKept(bad).ok()) << to;
  }
  for (const char* text : {"", "{}", "[]", "null", "{\"schema\":1}"}) EXPECT_FALSE(ReadKept(text).ok()) << text;
}

}  // namespace
}  // namespace taskd::policy
