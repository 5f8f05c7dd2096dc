// parallel_group.json: the fast reader of the usual form says what the tolerant one says. A byte order mark, which JSON
// allows and the fast one does not know, makes the second reading a tolerant one.
#include <cstdio>
#include <cstdlib>

#include "marks/parallel_group.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.rfind(mark, 0) == 0) return 0;
  auto groups = taskd::ParseParallelGroups(text);
  auto tolerant = taskd::ParseParallelGroups(mark + text);
  FUZZ_CHECK(groups.ok() == tolerant.ok());
  FUZZ_CHECK(groups.ok() ? *groups == *tolerant : groups.status().code() == tolerant.status().code());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {R"({"tp_0": {"group_name": "tp", "group_rank": 1, "global_ranks": [0, 1, 2, 3]},
            "world": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0,8,16,2147483647]}})",
          "{\n    \"a\": {\n        \"global_ranks\": [\n            0,\n            10\n        ]\n    }\n}\n",
          R"({"a":{},"a":{"global_ranks":[],"global_ranks":[1],"more":"x","ranks":[1,2]}})",
          R"({"a\u0041": {"global_ranks": [1, -2, 3.5, "4", [5], {"x": null}]}})", "{}"};
}
