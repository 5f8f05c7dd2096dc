// What a tier and the store above it send each other: a frame that is accepted is the one that these bytes say.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/frame_buffer.h"
#include "store/tier_frame.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  taskd::FrameBuffer buffer(1 << 20);
  buffer.Append(std::string_view(reinterpret_cast<const char*>(data), size));
  std::string_view body;
  while (true) {
    auto next = buffer.Next(body);
    if (!next.ok() || !*next) break;
    FUZZ_CHECK(body.size() <= size);
    auto frame = taskd::store::ParseFrame(body);
    if (!frame.ok()) continue;
    std::string again;
    taskd::store::AppendFrame(*frame, again);
    FUZZ_CHECK(again.size() == sizeof(uint32_t) + body.size());
    // A flag may be any byte but 0, and is 1 when it is sent on.
    again[sizeof(uint32_t) + 2] = body[2];
    FUZZ_CHECK(std::string_view(again).substr(sizeof(uint32_t)) == body);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  std::string all;
  for (uint8_t type = 1; type <= static_cast<uint8_t>(taskd::store::TierFrame::Type::kRevoke); ++type) {
    taskd::store::TierFrame frame;
    frame.type = static_cast<taskd::store::TierFrame::Type>(type);
    frame.op = taskd::store::StoreOp::kMultiSet;
    frame.id = type;
    frame.keys = {"/key", ""};
    frame.values = {"value", std::string(100, 'x')};
    frame.states = {1, 7};
    std::string one;
    taskd::store::AppendFrame(frame, one);
    seeds.push_back(one);
    all += one;
  }
  seeds.push_back(all);
  return seeds;
}
