// Rules for names of marks, and names, both of the user's code: what is recorded is a kind's own name or the name
// itself, no longer than a record holds, and no byte beyond the name's end counts.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/fuzz/fuzz_target.h"
#include "worker_sdk/src/mark_names.h"
#include "worker_sdk/src/name_words.h"

namespace {

namespace ring = taskd::ring;
namespace worker = taskd::worker;

struct Complaint {
  int times = 0;
  std::string line;
};

void Copy(const std::string& name) {
  // Of its own size, so that the sanitizer sees a step beyond it; words may be read there, but nothing of them is
  // taken.
  const std::unique_ptr<char[]> exact(new char[name.size() + 1]);
  memcpy(exact.get(), name.c_str(), name.size() + 1);
  uint64_t words[33];
  memset(words, 0xee, sizeof(words));
  const worker::NameCopy copy = worker::CopyName<worker::NamePlace::kNearPageEnd>(
      words, worker::LoadNameWord<worker::NamePlace::kNearPageEnd>(exact.get()), exact.get());
  FUZZ_CHECK(copy.bytes == std::min<size_t>(name.size(), ring::kMaxNameBytes));
  FUZZ_CHECK(copy.truncated == (name.size() > ring::kMaxNameBytes));
  FUZZ_CHECK(memcmp(words, name.data(), copy.bytes) == 0);
  const char* bytes = reinterpret_cast<const char*>(words);
  for (size_t i = copy.bytes; i % 8 != 0; ++i) FUZZ_CHECK(bytes[i] == '\0');
  FUZZ_CHECK(words[32] == 0xeeeeeeeeeeeeeeee);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 16384) return 0;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const std::string rules = text.substr(0, line).c_str();
  const std::string name = line == std::string::npos ? "" : text.substr(line + 1).c_str();
  worker::MarkNames names;
  Complaint complaint;
  names.Parse(
      rules.c_str(),
      [](const char* said, void* argument) {
        ++static_cast<Complaint*>(argument)->times;
        static_cast<Complaint*>(argument)->line = said;
      },
      &complaint);
  FUZZ_CHECK(complaint.times <= 1 && complaint.line.find('\n') == std::string::npos && complaint.line.size() < 1024);
  char storage[worker::MarkNames::kNameBytes];
  worker::MarkNames::Translation out;
  if (names.Translate(name.c_str(), storage, out)) {
    FUZZ_CHECK(strlen(out.name) <= ring::kMaxNameBytes + 1 && out.kind < ring::kKinds);
    FUZZ_CHECK(out.communication == (out.kind == ring::kKindCommunication));
    FUZZ_CHECK(out.communication || worker::KindOfName(out.name) == out.kind);
    FUZZ_CHECK(worker::KindOfName(name.c_str()) == ring::kKindOther);  // a kind's own name is left alone
  }
  Copy(name);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {"forward=my_fwd*;step=iter *;dataloader=next_batch\niter 12",
          "step=a*b*c?\\*\nabcbcx*",
          "fp=*\nx",
          "communication=c*\nc1",
          "checkpoint=" + std::string(128, 'x') + ";;bad;=x;step=\nstep 99999999999999999999",
          "\n" + std::string(300, 'n'),
          "step=*\n-12x",
          "\nstep 1234567890"};
}
