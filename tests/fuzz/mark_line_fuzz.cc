// Any name in any domain gives one line that is a JSON object, and our own reader reads it.
#include <cstdio>
#include <cstdlib>

#include "marks/mark_line.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  taskd::ParseMarkLine(text);
  for (const char* domain : {"communication", "default"}) {
    std::string line;
    taskd::AppendMarkLine({.flag = 16,
                           .timestamp_ns = 1,
                           .id = 2,
                           .process_id = 3,
                           .thread_id = 4,
                           .name = text,
                           .domain = domain,
                           .cut = (data[0] & 1) != 0},
                          line);
    FUZZ_CHECK(line.find('\n') == line.size() - 1);
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    FUZZ_CHECK(json.is_object() && json["Domain"] == domain);
    line.pop_back();
    FUZZ_CHECK(taskd::ParseMarkLine(line).has_value());
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"(0{\"count\": \"1024\",\"streamId\": \"7\",\"groupName\": \"g\",\"opName\": \"HcclAllreduce\"})",
      R"(1{"count": "1024","dataType": "bfp16"})", "0step 12",
      ("1gr\xc3\xb6\xc3\x9f"  // the next character would be taken for a digit of the last
       "e \xe6\xad\xa5 \xf0\x9f\x98\x80"),
      // Halves of surrogate pairs: the first is whole, the others are not.
      R"(0{\"a\":\"\ud83d\ude00\"})", R"(0{\"a\":\"\ude00\ud83d\"})", R"(0{\"a\":\"\ud83dx\"})",
      (R"(0{"Kind":1,"Flag":16,"SourceKind":0,"Timestamp":1,"Id":7,"MsptiObjectId":{"Pt":{"ProcessId":1,"ThreadId":4},)"
       R"("Ds":{"DeviceId":1,"StreamId":4}},"Name":"step 1","Domain":"default"})")};
}
