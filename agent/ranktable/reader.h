// From the text of a rank table to its model, with the rules that concern one value. Internal to agent/ranktable.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "agent/ranktable/errors.h"
#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {

// 1.2: what is written in super_pod_list.
struct RankTableSuperPod {
  struct Member {
    std::string_view server_id;
    uint32_t begin = 0;  // of the value
  };
  std::string_view id;
  uint32_t begin = 0;
  std::vector<Member> members;
};

// What the rules across a table need beside the table itself.
struct RankTableFacts {
  // Every list of servers and devices could be read and is as long as the table's count. Otherwise it is unknown which
  // ranks there ought to be.
  bool complete = true;
  bool readable = false;  // the version is known and the table is completed: there is something to judge
  bool is_lab = false;    // version absent: a rank an instance, several instances a server
  uint32_t super_pod_list = 0;
  std::vector<RankTableSuperPod> super_pods;
  std::vector<int64_t> super_device_ids;  // 1.2: of table.devices; -1: not known
};

// Fills `table` from table.text, which CheckJsonText has accepted, and `check` but for its errors.
void ReadRankTable(ChipRules chip, RankTable& table, RankTableFacts& facts, RankTableErrors& errors,
                   RankTableCheck& check);

// Where the value of an object's field begins; the object itself if it has none.
uint32_t FieldBegin(const RankTable& table, uint32_t object, std::string_view field);

}  // namespace taskd::ranktable
