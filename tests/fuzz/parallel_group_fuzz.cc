// parallel_group.json: it is read as nlohmann's JSON reads it.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "marks/parallel_group.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace {

// Whether it has a key twice: the library's tree has one of them.
bool ReadWithTwice(const std::string& text, nlohmann::json* json) {
  bool twice = false;
  std::vector<std::set<std::string>> keys;  // by depth
  *json = nlohmann::json::parse(
      text,
      [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
        keys.resize(std::max<size_t>(keys.size(), static_cast<size_t>(depth) + 2));
        if (event == nlohmann::json::parse_event_t::object_start) keys[static_cast<size_t>(depth) + 1].clear();
        if (event == nlohmann::json::parse_event_t::key) {
          twice = !keys[static_cast<size_t>(depth)].insert(parsed.get<std::string>()).second || twice;
        }
        return true;
      },
      /*allow_exceptions=*/false);
  return twice;
}

std::vector<int> MembersOf(const nlohmann::json& group) {
  std::vector<int> members;
  const auto list = group.find("global_ranks");
  if (list == group.end() || !list->is_array()) return members;
  for (const nlohmann::json& member : *list) {
    if (member.is_number_unsigned() && member.get<uint64_t>() <= INT_MAX) members.push_back(member.get<int>());
  }
  return members;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto groups = taskd::ParseParallelGroups(text);
  nlohmann::json json;
  const bool twice = ReadWithTwice(text, &json);
  // The library ends at a NUL, and reads over a byte order mark.
  if (twice || text.find('\0') != text.npos || text.starts_with("\xef\xbb\xbf")) return 0;
  // It refuses halves of surrogate pairs, and numbers beyond its own bounds.
  if (json.is_discarded()) {
    FUZZ_CHECK(!groups.ok() || text.find("\\u") != text.npos || text.find_first_of("eE") != text.npos);
    return 0;
  }
  const bool is_of_groups =
      json.is_object() && std::all_of(json.begin(), json.end(), [](const auto& group) { return group.is_object(); });
  const auto opened = std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; });
  if (!groups.ok()) {
    FUZZ_CHECK(!is_of_groups || text.size() > 512 || opened > 16);
    return 0;
  }
  FUZZ_CHECK(is_of_groups);
  FUZZ_CHECK(json.size() == groups->size());
  for (const taskd::GroupInfo& group : *groups) {
    const nlohmann::json& object = json.at(group.name);
    const auto label = object.find("group_name");
    FUZZ_CHECK(group.label == (label != object.end() && label->is_string() ? label->get<std::string>() : ""));
    FUZZ_CHECK(group.members == taskd::CompressMembers(MembersOf(object)));
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {R"({"tp_0": {"group_name": "tp", "group_rank": 1, "global_ranks": [0, 1, 2, 3]},
            "world": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0,8,16,2147483647]}})",
          "{\n    \"a\": {\n        \"global_ranks\": [\n            0,\n            10\n        ]\n    }\n}\n",
          R"({"a":{},"a":{"global_ranks":[],"global_ranks":[1],"more":"x","ranks":[1,2]}})",
          R"({"a\u0041": {"global_ranks": [1, -2, 3.5, "4", [5], {"x": null}]}})",
          R"({"a\"\n": {"global_ranks": [1, -2, 3.5, "4", [5], {"x": null}, true], "group_name": "é\/"}})",
          "{}"};
}
