// The ConfigMap's text: a change with at least one switch, or an error with a message.
#include <cstdio>
#include <cstdlib>

#include "common/switch.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto change = taskd::ParseSwitchJson({reinterpret_cast<const char*>(data), size});
  FUZZ_CHECK(change.ok() || !change.status().message().empty());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {R"({"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"on","DataLoader":"on"})",
          R"({"Step":""})", R"({"Step":"on","nested":{"a":[1,2,{"b":null}]}})", "[[[[[[[[[[", "{}"};
}
