#include "manager/page/web_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace taskd::manager {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class WebApiTest : public ::testing::Test {
 protected:
  ~WebApiTest() override { diagnosis_->Close(); }

  HttpResponse Get(const std::string& path, const std::string& query = "") {
    const size_t folder = path.rfind('/') + 1;
    auto found = handlers_.find("/api/v1/" + path);
    if (found == handlers_.end()) found = handlers_.find("/api/v1/" + path.substr(0, folder));
    HttpRequest request;
    request.path = "/api/v1/" + path;
    request.query = query;
    return found->second(request);
  }
  json GetJson(const std::string& path, const std::string& query = "") {
    const HttpResponse response = Get(path, query);
    EXPECT_EQ(response.status, 200) << *response.body;
    json parsed = json::parse(*response.body);
    EXPECT_EQ(parsed["schema"], 1);
    return parsed;
  }
  void AddStep(int rank, int64_t step, uint64_t period_ms) {
    StepFold fold;
    fold.step = step;
    fold.process_id = 1;
    fold.previous_end_ns = 1'000'000'000;
    fold.end_ns = fold.previous_end_ns + period_ms * 1'000'000;
    history_->Add(rank, fold);
  }

  std::shared_ptr<ManagerCore> core_ =
      std::make_shared<ManagerCore>(JobShape{"ns/job", "task", 1, 4}, KeptState{}, nullptr);
  std::shared_ptr<DiagnosisCore> diagnosis_ =
      std::make_shared<DiagnosisCore>(DiagnosisCore::Options{}, std::vector<diagnosis::Verdict>{}, nullptr);
  std::shared_ptr<SupervisionCore> supervision_ = std::make_shared<SupervisionCore>(nullptr);
  std::shared_ptr<view::History> history_ = std::make_shared<view::History>();
  std::shared_ptr<view::RankGroups> groups_ = std::make_shared<view::RankGroups>();
  std::shared_ptr<EventLog> events_ = std::make_shared<EventLog>();
  std::shared_ptr<JobLedger> ledger_ =
      std::make_shared<JobLedger>(JobLedger::Options{"ns/job", "", 4, true, nullptr}, "");
  ActionCore::Options NoDecisions() {
    ActionCore::Options options;
    options.report = [this] { return diagnosis_->report(); };
    options.look = [](const diagnosis::Report&) { return policy::View(); };
    return options;
  }
  std::shared_ptr<ActionCore> actions_ = std::make_shared<ActionCore>(NoDecisions(), "");
  HttpHandlers handlers_ = MakeWebApi({core_, diagnosis_, supervision_, history_, groups_, events_, ledger_, actions_,
                                       std::chrono::steady_clock::now()});
};

TEST_F(WebApiTest, AHeatMapHasARowForEachRank) {
  for (int rank = 0; rank < 3; ++rank) AddStep(rank, 7, rank == 1 ? 200 : 100);
  const json map = GetJson("heatmap", "value=period&rows=512");
  EXPECT_EQ(map["value"], "period");
  EXPECT_EQ(map["first"], 7);
  EXPECT_EQ(map["last"], 7);
  EXPECT_EQ(map["rows"], json::parse(R"([{"ranks":"0"},{"ranks":"1"},{"ranks":"2"}])"));
  EXPECT_EQ(map["scale"]["max"], 3.0);
  std::string cells;
  ASSERT_TRUE(absl::Base64Unescape(map["cells"].get<std::string>(), &cells));
  EXPECT_EQ(cells, std::string("\x55\xa9\x55"));
  EXPECT_EQ(GetJson("heatmap", "rows=2")["rows"], json::parse(R"([{"ranks":"0-1"},{"ranks":"2"}])"));
  EXPECT_EQ(GetJson("heatmap", "first=8")["steps"], json::array());
}

TEST_F(WebApiTest, TheLedgerAddsUp) {
  const json goodput = GetJson("goodput", "");
  EXPECT_EQ(goodput["job"], "ns/job");
  EXPECT_EQ(goodput["slots"], 4);
  EXPECT_EQ(goodput["seconds"].size(), 16u);
  double sum = 0;
  for (const auto& [category, seconds] : goodput["seconds"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, goodput["rank_s"], 1e-4);
  EXPECT_EQ(Get("goodput", "rows=1").status, 400);
}

TEST_F(WebApiTest, ListsDecisions) {
  const json actions = GetJson("actions", "");
  EXPECT_EQ(actions["policy"]["on_slow"], "report");
  EXPECT_EQ(actions["actions"], json::array());
  EXPECT_EQ(Get("actions", "rows=1").status, 400);
}

TEST_F(WebApiTest, WhatIsWrongIsOneLine) {
  for (const char* query : {"value=speed", "rows=0", "rows=16385", "rows=x", "first=-1", "last=99999999999999999999",
                            "colour=red", "rows=1&rows=2", "rows"}) {
    const HttpResponse response = Get("heatmap", query);
    EXPECT_EQ(response.status, 400) << query;
    EXPECT_EQ(std::count(response.body->begin(), response.body->end(), '\n'), 1) << *response.body;
  }
  EXPECT_EQ(Get("status", "x=y").status, 400);
  EXPECT_EQ(Get("events", "since=-1").status, 400);
  EXPECT_EQ(Get("rank/x").status, 400);
  EXPECT_EQ(Get("rank/-1").status, 400);
  EXPECT_EQ(Get("rank/5").status, 404);
}

TEST_F(WebApiTest, ViewersShareARendering) {
  AddStep(0, 1, 100);
  EXPECT_EQ(Get("heatmap").body, Get("heatmap").body);
  EXPECT_EQ(Get("live").body, Get("live").body);
  EXPECT_NE(Get("live").body, Get("live", "value=period").body);
}

TEST_F(WebApiTest, ARankHasItsLastSteps) {
  AddStep(2, 1, 100);
  AddStep(2, 2, 120);
  const json rank = GetJson("rank/2");
  EXPECT_EQ(rank["rank"], 2);
  ASSERT_EQ(rank["steps"].size(), 2u);
  EXPECT_EQ(rank["steps"][1]["period_ms"], 120.0);
  EXPECT_TRUE(rank["steps"][1]["dataloader_ms"].is_null());
  EXPECT_EQ(rank["steps"][1]["compute_ms"], 120.0);
  EXPECT_EQ(rank["groups"], json::array());
}

TEST_F(WebApiTest, ARankHasItsGroups) {
  AddStep(2, 1, 100);
  groups_->Set(0, 2,
               {{"hccl_world_group", "dp", CompressMembers({0, 1, 2, 3})},
                {"g_tp", "tp", CompressMembers({2, 0})},
                {"x\"y", "", {}}});
  EXPECT_EQ(GetJson("rank/2")["groups"], json::parse(R"([
      {"name":"hccl_world_group","label":"dp","size":4,"ranks":"0-3"},
      {"name":"g_tp","label":"tp","size":2,"ranks":"0, 2"},
      {"name":"x\"y","label":"","size":0,"ranks":""}])"));
}

TEST_F(WebApiTest, AHangSaysWhoIsBehindAndWhereAllStand) {
  JobPulse job = {.wanted = {}, .is_seen = true, .ranks = {}};
  job.wanted.effective = MaskOf(SwitchKind::kStep);
  for (int rank = 0; rank < 4; ++rank) job.ranks.push_back({.rank = rank, .pid = 100 + rank});
  SteadyTime now{};
  for (int step = 1; step <= 10; ++step) {
    for (RankPulse& rank : job.ranks) {
      rank.step = rank.rank == 2 && step == 10 ? 9 : step;
      rank.step_ms = 1000;
      ++rank.marks[0];
    }
    supervision_->Look(job, now += std::chrono::seconds(1), 0);
  }
  for (int s = 0; s < 100; ++s) supervision_->Look(job, now += std::chrono::seconds(1), 5'000'000'000);
  SupervisionEvent stacks;
  stacks.kind = SupervisionEvent::Kind::kStacks;
  stacks.message = "ranks 0-1, 3:\n  wait";
  stacks.time_ns = 6'000'000'000;
  events_->Add(stacks);
  const json hang = GetJson("hang")["hang"];
  EXPECT_EQ(hang["missing"], "2");
  EXPECT_EQ(hang["lowest_step"], 9);
  EXPECT_EQ(hang["highest_step"], 10);
  EXPECT_EQ(hang["since"], "1970-01-01T00:00:05.000Z");
  EXPECT_EQ(hang["stacks"], stacks.message);
  EXPECT_EQ(hang["origins"], json::array({2}));
  EXPECT_EQ(hang["kind"], "missing");
  EXPECT_EQ(hang["since_time"], hang["since"]);
  EXPECT_EQ(hang["waiting"], "0, 1, 3");
  EXPECT_EQ(hang["sources"], json::array());
  EXPECT_EQ(GetJson("live")["state"], "hung");
}

TEST_F(WebApiTest, AHangHasWhatTheLibrariesOfItsRanksProve) {
  JobPulse job = {.wanted = {}, .is_seen = true, .ranks = {{.pid = 100}}};
  job.wanted.effective = MaskOf(SwitchKind::kStep);
  RankPulse& rank = job.ranks.front();
  SteadyTime now{};
  for (rank.step = 1; rank.step < 10; ++rank.step) {
    rank.step_ms = 1000;
    ++rank.marks[0];
    supervision_->Look(job, now += std::chrono::seconds(1), 0);
  }
  for (int s = 0; s < 100; ++s) supervision_->Look(job, now += std::chrono::seconds(1), 5'000'000'000);
  SupervisionEvent event;
  event.kind = SupervisionEvent::Kind::kEvidence;
  HangEvidence evidence;
  evidence.hang = 1;
  evidence.is_found = true;
  evidence.origins = {3};
  evidence.kind = "missing";
  evidence.operation = "all_reduce";
  evidence.since_ns = 4'000'000'000;
  evidence.waiting = "0-2";
  evidence.frames = {"f (a.py:1)"};
  evidence.text = "rank 3 never came";
  evidence.notes = {"a note"};
  evidence.sources.push_back({"/tmp/r_0", "flight_recorder", 0, 7, "it is cut"});
  evidence.sources.push_back({"localhost:28028", "nccl_ras", -1, 2, ""});
  event.evidence = std::make_shared<const HangEvidence>(evidence);
  ASSERT_TRUE(supervision_->Report({event}, now).ok());
  const json hang = GetJson("hang")["hang"];
  EXPECT_THAT(hang["text"].get<std::string>(), HasSubstr("hang: rank 3 never came; no rank has ended a step"));
  EXPECT_EQ(hang["origins"], json::array({3}));
  EXPECT_EQ(hang["operation"], "all_reduce");
  EXPECT_EQ(hang["since_time"], "1970-01-01T00:00:04.000Z");
  EXPECT_EQ(hang["frames"], json::array({"f (a.py:1)"}));
  EXPECT_EQ(hang["evidence"], json::array({"a note"}));
  EXPECT_EQ(hang["sources"], json::parse(R"([
      {"path":"/tmp/r_0","format":"flight_recorder","rank":0,"records":7,"note":"it is cut"},
      {"path":"localhost:28028","format":"nccl_ras","rank":null,"records":2,"note":""}])"));
  EXPECT_EQ(hang["more_sources"], 0);
  const json diagnosis = GetJson("diagnosis");
  EXPECT_EQ(diagnosis["state"], "hung");
  EXPECT_EQ(diagnosis["hang"]["origins"], json::array({3}));
  EXPECT_THAT(diagnosis["hang"]["text"].get<std::string>(), ::testing::StartsWith("rank 3 never came; no rank"));
  EXPECT_EQ(diagnosis["sources"], hang["sources"]);
}

TEST_F(WebApiTest, TheNewestIsAllThatThePageNeedsEachSecond) {
  AddStep(0, 1, 100);
  SupervisionEvent event;
  event.kind = SupervisionEvent::Kind::kExited;
  event.rank = 3;
  event.message = "\x1b[31m<b>\xff";
  events_->Add(event);
  const json live = GetJson("live");
  EXPECT_EQ(live["job"], "ns/job");
  EXPECT_EQ(live["step"], 1);
  EXPECT_EQ(live["ranks"]["expected"], 4);
  EXPECT_EQ(live["heatmap"]["steps"], json::parse("[1]"));
  EXPECT_EQ(live["diagnosis"]["schema"], 1);
  EXPECT_THAT(live["verdict"].get<std::string>(), HasSubstr("cannot say: "));
  EXPECT_EQ(live["events"].size(), 1u);
  EXPECT_TRUE(live["hang"].is_null());
  EXPECT_EQ(GetJson("events", "since=1")["events"], json::array());
  EXPECT_EQ(GetJson("events")["last"], 1);
  EXPECT_EQ(GetJson("hang")["hang"], json());
  EXPECT_EQ(GetJson("status")["job"], "ns/job");
  EXPECT_EQ(GetJson("diagnosis")["job"], "ns/job");
}

}  // namespace
}  // namespace taskd::manager
