#include "testing/segment_view.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace taskd::testing {
namespace {

constexpr uint64_t kMaxBytes = ring::kDataOffset + uint64_t{ring::kLargeRings} * ring::kLargeRingBytes +
                               uint64_t{ring::kMaxThreads - ring::kLargeRings} * ring::kSmallRingBytes;

int OnlySegment() {
  std::vector<int> segments = SegmentDescriptors();
  if (segments.size() != 1) {
    fprintf(stderr, "segment_view: this process has %zu segments, one was expected\n", segments.size());
    abort();
  }
  return segments[0];
}

std::string Describe(const char* what, uint32_t slot, uint64_t position) {
  return std::string(what) + " in slot " + std::to_string(slot) + " at " + std::to_string(position);
}

}  // namespace

std::vector<int> SegmentDescriptors() {
  std::vector<int> found;
  DIR* folder = opendir("/proc/self/fd");
  while (dirent* entry = readdir(folder)) {
    char target[256];
    ssize_t bytes = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
    if (bytes < 0) continue;
    target[bytes] = '\0';
    if (strncmp(target, "/dev/shm/taskd-", 15) != 0 && strncmp(target, "/memfd:taskd", 12) != 0) continue;
    // The library's thread opens those of the dead and of ancestors for a moment, to read.
    const int fd = atoi(entry->d_name);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR) found.push_back(fd);
  }
  closedir(folder);
  std::sort(found.begin(), found.end());
  return found;
}

SegmentView::SegmentView() : SegmentView(OnlySegment()) {}

SegmentView::SegmentView(int fd) : fd_(fd) {
  void* base = mmap(nullptr, kMaxBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    perror("segment_view: mmap");
    abort();
  }
  header_ = static_cast<ring::SegmentHeader*>(base);
}

SegmentView::~SegmentView() { munmap(header_, kMaxBytes); }

std::vector<Record> SegmentView::Records(std::string* problem) const {
  std::vector<Record> records;
  const uint32_t slots = header_->slots.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < slots; ++i) {
    const ring::ThreadSlot& slot = header_->thread_slots[i];
    if (slot.ready.load(std::memory_order_acquire) != 1) continue;
    const char* data = reinterpret_cast<const char*>(header_) + slot.data_offset;
    const uint64_t head = slot.head.load(std::memory_order_acquire);
    const uint64_t reserved = slot.reserved.load();
    if (problem != nullptr && (reserved % ring::kBlockBytes != 0 || head > reserved)) {
      *problem = Describe("bad reservation", i, reserved);
    }
    uint64_t position = reserved > slot.data_bytes ? reserved - slot.data_bytes : 0;
    while (position < head) {
      uint64_t words[ring::kMaxRecordBytes / 8] = {};
      auto word_at = [&](uint64_t at) {
        return __atomic_load_n(reinterpret_cast<const uint64_t*>(data + at % slot.data_bytes), __ATOMIC_RELAXED);
      };
      words[0] = word_at(position);
      const uint32_t bytes = words[0] & 0xffff;
      const auto type = static_cast<ring::RecordType>(words[0] >> 16 & 0xff);
      const uint64_t block_left = ring::kBlockBytes - position % ring::kBlockBytes;
      if (bytes == 0 || bytes % 8 != 0 || bytes > block_left || (type == ring::kRecordPad && bytes != block_left) ||
          (type != ring::kRecordPad && (bytes < ring::kRecordHeaderBytes || bytes > ring::kMaxRecordBytes))) {
        if (problem != nullptr) *problem = Describe("bad record", i, position);
        break;
      }
      if (type != ring::kRecordPad) {
        for (uint32_t word = 1; word < bytes / 8; ++word) words[word] = word_at(position + word * 8);
        const uint32_t name_bytes = words[3] >> 32 & 0xffff;
        const char* name = reinterpret_cast<const char*>(words + 4);
        records.push_back({i, type, static_cast<uint32_t>(words[0] >> 24 & 0xff), static_cast<uint32_t>(words[0] >> 32),
                           words[1], words[2], static_cast<uint32_t>(words[3]),
                           static_cast<uint32_t>(words[3] >> 48 & 0xff), static_cast<uint32_t>(words[3] >> 56),
                           std::string(name, name_bytes)});
        if (problem != nullptr) {
          const uint32_t trailer = (words[0] >> 24 & ring::kFlagSource) != 0 ? ring::kSourceTrailerBytes : 0;
          if (ring::kRecordHeaderBytes + (name_bytes + 7) / 8 * 8 + trailer != bytes)
            *problem = Describe("bad size", i, position);
          for (uint32_t at = name_bytes; at < bytes - ring::kRecordHeaderBytes - trailer; ++at) {
            if (name[at] != '\0') *problem = Describe("padding is not zero", i, position);
          }
        }
      }
      position += bytes;
    }
  }
  return records;
}

Record SegmentView::Last() const {
  const auto tid = static_cast<uint32_t>(syscall(SYS_gettid));
  std::vector<Record> records = Records();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->tid == tid) return *record;
  }
  return {};
}

}  // namespace taskd::testing
