#include "policy/render.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "nlohmann/json.hpp"

namespace taskd::policy {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxOrders = 64;
constexpr size_t kMaxReadText = 4096;

std::string Rfc3339(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

std::string Dump(const Json& json) { return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

double Rounded(double value) {
  if (!std::isfinite(value)) return 0;
  return std::round(std::clamp(value, -1e15, 1e15) * 1000) / 1000;
}

Json ToJson(const Action& action) {
  Json json;
  json["id"] = action.id;
  json["time"] = Rfc3339(action.time_ns);
  json["trigger"] = Name(action.trigger);
  json["node"] = action.node < 0 ? Json() : Json(action.node);
  json["host"] = action.host;
  json["node_name"] = action.node_name;
  json["ranks"] = action.ranks[0] < 0 ? Json() : Json(action.ranks);
  json["verdict"] = action.verdict;
  json["decision"] = Name(action.decision);
  json["refused_by"] = action.refused_by ? Json(Name(*action.refused_by)) : Json();
  json["reason"] = action.reason;
  json["state"] = Name(action.state);
  json["moment"] = Json();
  json["promised"] = Json();
  if (action.promised) {
    Json& promised = json["promised"];
    promised["saves_ms_per_step"] = Rounded(action.promised->saves_ms_per_step);
    promised["steps"] = action.promised->steps;
    promised["saves_rank_s"] = Rounded(action.promised->saves_rank_s);
    promised["price_rank_s"] = Rounded(action.promised->price_rank_s);
  }
  json["orders"] = Json::array();
  for (const Order& order : action.orders) {
    Json row;
    row["to"] = order.to;
    row["time"] = Rfc3339(order.time_ns);
    row["outcome"] = Name(order.outcome);
    row["text"] = order.text;
    json["orders"].push_back(std::move(row));
  }
  json["measured"] = Json();
  return json;
}

// ---- Kept: the same, with times in ns and the verdict's number.

Json ToKept(const Action& action) {
  Json json = ToJson(action);
  json["time_ns"] = action.time_ns;
  json["verdict_id"] = action.verdict_id;
  for (size_t i = 0; i < action.orders.size(); ++i) {
    json["orders"][i]["time_ns"] = action.orders[i].time_ns;
    json["orders"][i]["withdrawn"] = action.orders[i].withdrawn;
  }
  return json;
}

template <typename Enum>
bool Read(const Json& json, const char* key, size_t count, Enum* value) {
  const std::optional<Enum> read = FromName<Enum>(json.value(key, std::string()), count);
  if (read) *value = *read;
  return read.has_value();
}

std::string ReadText(const Json& json, const char* key) {
  std::string text = json.value(key, std::string());
  if (text.size() > kMaxReadText) text.resize(kMaxReadText);
  return text;
}

// Throws where a value has another type than it should have.
bool ReadAction(const Json& json, Action* action) {
  action->id = ReadText(json, "id");
  action->time_ns = json.at("time_ns").get<int64_t>();
  action->verdict_id = json.at("verdict_id").get<uint64_t>();
  action->node = json.at("node").is_null() ? -1 : json.at("node").get<int>();
  action->host = ReadText(json, "host");
  action->node_name = ReadText(json, "node_name");
  if (!json.at("ranks").is_null()) action->ranks = json.at("ranks").get<std::array<int, 2>>();
  action->verdict = ReadText(json, "verdict");
  action->reason = ReadText(json, "reason");
  if (!Read(json, "trigger", 4, &action->trigger) || !Read(json, "decision", kDecisions, &action->decision) ||
      !Read(json, "state", 6, &action->state)) {
    return false;
  }
  if (!json.at("refused_by").is_null()) {
    Refusal refusal;
    if (!Read(json, "refused_by", kRefusals, &refusal)) return false;
    action->refused_by = refusal;
  }
  if (const Json& promised = json.at("promised"); !promised.is_null()) {
    action->promised = Promise{promised.at("saves_ms_per_step"), promised.at("steps"), promised.at("saves_rank_s"),
                               promised.at("price_rank_s")};
  }
  for (const Json& row : json.at("orders")) {
    Order order;
    order.to = ReadText(row, "to");
    order.time_ns = row.at("time_ns").get<int64_t>();
    order.text = ReadText(row, "text");
    order.withdrawn = row.value("withdrawn", false);
    if (!Read(row, "outcome", 3, &order.outcome) || action->orders.size() >= kMaxOrders) return false;
    action->orders.push_back(std::move(order));
  }
  return !action->id.empty();
}

// For people. Throws where a value has another type than it should have.
std::string TextOf(const Json& action) {
  const bool refused = !action.at("refused_by").is_null();
  std::string out = absl::StrCat(
      Printable(action.at("time").get<std::string>()), "  ", Printable(action.at("id").get<std::string>()), "  ",
      refused ? absl::StrCat("refused: ", Printable(action.at("refused_by").get<std::string>()))
              : absl::StrCat(Printable(action.at("decision").get<std::string>()), ", ",
                             Printable(action.at("state").get<std::string>())),
      "\n  ", Printable(action.at("reason").get<std::string>(), 1000), "\n");
  if (const std::string verdict = action.at("verdict").get<std::string>(); !verdict.empty()) {
    absl::StrAppend(&out, "  verdict: ", Printable(verdict, 1000), "\n");
  }
  for (const Json& order : action.at("orders")) {
    absl::StrAppend(&out, "  ", Printable(order.at("to").get<std::string>()), ": ",
                    Printable(order.at("outcome").get<std::string>()), ", ",
                    Printable(order.at("text").get<std::string>(), 1000), "\n");
  }
  return out;
}

}  // namespace

std::string RenderJson(const Action& action) { return Dump(ToJson(action)); }

std::string RenderJson(const Policy::Kept& kept, const Options& options, double remaining_s,
                       const std::string& no_name) {
  Json json;
  json["schema"] = 1;
  Json& policy = json["policy"];
  policy["on_slow"] = Name(options.on_slow);
  Json& when = policy["when"];
  when["cause"] = Json::array();
  for (int cause = 0; cause < diagnosis::kCauses; ++cause) {
    if (options.when.causes[static_cast<size_t>(cause)]) {
      when["cause"].push_back(diagnosis::Name(static_cast<diagnosis::Cause>(cause)));
    }
  }
  when["confidence"] = options.when.confidence;
  when["open_steps"] = options.when.open_steps;
  when["cost_percent"] = options.when.cost_percent;
  policy["remaining_h"] = Rounded(remaining_s / 3600);
  policy["evictions"] = Text(options.evictions);
  json["paused"] = kept.paused;
  json["summary"] = Summary(kept.actions);
  json["no_node_name"] = no_name.empty() ? Json() : Json(no_name);
  json["actions"] = Json::array();
  for (auto action = kept.actions.rbegin(); action != kept.actions.rend(); ++action) {
    json["actions"].push_back(ToJson(*action));
  }
  return Dump(json);
}

absl::StatusOr<std::string> RenderText(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    std::string out = absl::StrCat("on slow: ", Printable(json.at("policy").at("on_slow").get<std::string>()),
                                   json.at("paused").get<bool>() ? ", paused" : "", "; ",
                                   Printable(json.at("summary").get<std::string>()), "\n");
    if (const Json& no_name = json.at("no_node_name"); !no_name.is_null()) {
      absl::StrAppend(&out, "nothing about these leaves the job: ", Printable(no_name.get<std::string>(), 1000), "\n");
    }
    for (const Json& action : json.at("actions")) {
      absl::StrAppend(&out, "\n", TextOf(action));
    }
    return out;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no list of actions: ", error.what()));
  }
}

absl::StatusOr<std::string> RenderActionText(std::string_view text) {
  try {
    return TextOf(Json::parse(text));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no action: ", error.what()));
  }
}

std::string RenderKept(const Policy::Kept& kept) {
  Json json;
  json["schema"] = 1;
  json["paused"] = kept.paused;
  json["did_not_help"] = kept.did_not_help;
  json["next_id"] = kept.next_id;
  json["evicted"] = Json::array();
  for (const Policy::Kept::Evicted& evicted : kept.evicted) {
    json["evicted"].push_back(
        {{"action", evicted.action}, {"node_name", evicted.node_name}, {"time_ns", evicted.time_ns}});
  }
  json["actions"] = Json::array();
  for (const Action& action : kept.actions) json["actions"].push_back(ToKept(action));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Policy::Kept> ReadKept(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (json.value("schema", 0) != 1) return absl::InvalidArgumentError("kept actions are of a later release");
    Policy::Kept kept;
    kept.paused = json.at("paused").get<bool>();
    kept.did_not_help = json.at("did_not_help").get<bool>();
    kept.next_id = json.at("next_id").get<uint64_t>();
    for (const Json& row : json.at("evicted")) {
      if (kept.evicted.size() >= Policy::kMaxEvicted) break;
      kept.evicted.push_back({ReadText(row, "action"), ReadText(row, "node_name"), row.at("time_ns").get<int64_t>()});
    }
    for (const Json& row : json.at("actions")) {
      Action action;
      if (!ReadAction(row, &action)) return absl::InvalidArgumentError("a kept action cannot be read");
      kept.actions.push_back(std::move(action));
      if (kept.actions.size() > Policy::kMaxActions) kept.actions.pop_front();
    }
    return kept;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("kept actions: ", error.what()));
  }
}

}  // namespace taskd::policy
