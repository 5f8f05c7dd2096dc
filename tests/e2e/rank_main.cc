// A training process that only marks: what the end-to-end tests start as ranks, with libtaskd.so preloaded.
//
// Every thread makes --count marks (0: until SIGTERM), --rate a second (0: as fast as it can), and counts each in
// --counter after it was made, 64 bytes a thread, so that the count survives kill -9.
//   --pattern sequence   range "seq THREAD NUMBER xxx": proves that nothing is lost or doubled
//   --pattern training   one step a mark: "step N" around dataloader, forward and an all-reduce; every 10th saves a
//   checkpoint
//   --pattern handover   range "seq THREAD NUMBER xxx", started by an even thread and ended at once by the odd one
//   after it, which counts it
// --hold 1: stay after the last mark until SIGTERM. --init 0: leave the rank to the variable RANK.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "taskd/taskd.h"

namespace {

volatile std::sig_atomic_t stop_requested = 0;

template <typename Function>
Function* Symbol(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "e2e_rank: no symbol %s: preload libtaskd.so\n", name);
    std::exit(2);
  }
  return reinterpret_cast<Function*>(symbol);
}

struct Api {
  decltype(taskd_worker_init)* init = Symbol<decltype(taskd_worker_init)>("taskd_worker_init");
  decltype(taskd_range_start)* range_start = Symbol<decltype(taskd_range_start)>("taskd_range_start");
  decltype(taskd_range_end)* range_end = Symbol<decltype(taskd_range_end)>("taskd_range_end");
  decltype(taskd_domain_create)* domain_create = Symbol<decltype(taskd_domain_create)>("taskd_domain_create");
  decltype(taskd_domain_range_start)* domain_range_start =
      Symbol<decltype(taskd_domain_range_start)>("taskd_domain_range_start");
};

struct alignas(64) Counter {
  std::atomic<uint64_t> made;
};

void Range(const Api& api, const char* name) { api.range_end(api.range_start(name)); }

void TrainingStep(const Api& api, taskd_domain* communication, uint64_t number) {
  uint64_t step = api.range_start(("step " + std::to_string(number)).c_str());
  Range(api, "dataloader");
  Range(api, "forward");
  api.range_end(api.domain_range_start(
      communication,
      R"({\"count\": \"1024\",\"streamId\": \"0\",\"dataType\": \"fp32\",\"groupName\": \"default_group\",\"opName\": \"HcclAllreduce\"})"));
  if (number % 10 == 0) Range(api, "save_checkpoint");
  api.range_end(step);
}

// One range at a time on its way from the thread that starts it to the one that ends it.
struct alignas(64) Handover {
  std::atomic<uint64_t> id{0};  // 0: nothing under way
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {{"--rank", "0"},           {"--threads", "1"},    {"--rate", "0"},
                                              {"--count", "0"},          {"--name-bytes", "0"}, {"--counter", ""},
                                              {"--pattern", "sequence"}, {"--hold", "1"},       {"--init", "1"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 >= argc || !flags.contains(argv[i])) {
      std::fprintf(stderr, "e2e_rank: what is %s?\n", argv[i]);
      return 2;
    }
    flags[argv[i]] = argv[i + 1];
  }
  auto number = [&flags](const char* flag) { return std::strtoull(flags[flag].c_str(), nullptr, 10); };
  const size_t threads = number("--threads");
  const uint64_t count = number("--count");
  const uint64_t rate = number("--rate");
  const bool training = flags["--pattern"] == "training";
  const bool handover = flags["--pattern"] == "handover";
  const std::string padding(number("--name-bytes"), 'x');

  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  int fd = open(flags["--counter"].c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const size_t bytes = threads * sizeof(Counter);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("e2e_rank: --counter");
    return 2;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 2;
  auto* counters = static_cast<Counter*>(memory);

  const Api api;
  if (number("--init") != 0 && api.init(static_cast<int>(number("--rank")), -1, 0) != 0) return 3;
  taskd_domain* communication = api.domain_create("communication");

  std::vector<Handover> handovers((threads + 1) / 2);
  auto hand_over = [&](size_t thread) {
    std::atomic<uint64_t>& under_way = handovers[thread / 2].id;
    for (uint64_t i = 0; (count == 0 || i < count) && stop_requested == 0; ++i) {
      if (thread % 2 == 0) {
        const std::string name = "seq " + std::to_string(thread + 1) + " " + std::to_string(i) + " ";
        const uint64_t id = api.range_start(name.c_str());
        under_way.store(id, std::memory_order_release);
        while (under_way.load(std::memory_order_relaxed) != 0 && stop_requested == 0) std::this_thread::yield();
      } else {
        uint64_t id = 0;
        // At once: the end's time stamp may be taken while the processor still waits for the id.
        for (int tries = 1; (id = under_way.load(std::memory_order_acquire)) == 0 && stop_requested == 0; ++tries) {
          if (tries % 512 == 0) std::this_thread::yield();
        }
        if (id == 0) return;
        api.range_end(id);
        counters[thread].made.store(i + 1, std::memory_order_release);
        under_way.store(0, std::memory_order_release);
      }
    }
  };

  auto work = [&](size_t thread) {
    if (handover) return hand_over(thread);
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; (count == 0 || i < count) && stop_requested == 0; ++i) {
      if (training) {
        TrainingStep(api, communication, i);
      } else {
        std::string name = "seq " + std::to_string(thread) + " " + std::to_string(i) + " ";
        if (padding.size() > name.size()) name.append(padding, 0, padding.size() - name.size());
        Range(api, name.c_str());
      }
      counters[thread].made.store(i + 1, std::memory_order_release);
      if (rate == 0) continue;
      // Naps of at least a millisecond: a nap for each of 10,000 marks a second would measure the scheduler.
      const auto due = begin + std::chrono::nanoseconds(1'000'000'000 / rate) * (i + 1);
      if (due - std::chrono::steady_clock::now() > std::chrono::milliseconds(1)) std::this_thread::sleep_until(due);
    }
  };
  std::vector<std::thread> others;
  for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  while (number("--hold") != 0 && stop_requested == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return 0;
}
