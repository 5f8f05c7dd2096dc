#include "domains.h"

#include <string.h>

#include "primary.h"
#include "recorder.h"
#include "runtime.h"
#include "slow_path.h"

namespace taskd::worker {
namespace {

// An entry below g_domain_count never changes, so it is read without the lock: the count is stored with release behind
// the entry and loaded with acquire before it.
char g_names[ring::kMaxDomains][ring::kDomainNameBytes];

taskd_domain* Handle(uint32_t index) { return reinterpret_cast<taskd_domain*>(&g_domain_handles[index]); }

bool SameName(uint32_t index, const char* name) {
  return strncmp(g_names[index], name, ring::kDomainNameBytes - 1) == 0;
}

}  // namespace

constinit std::atomic<uint32_t> g_domain_count{ring::kDomainCommunication + 1};
char g_domain_handles[ring::kMaxDomains];

taskd_domain* CreateDomain(const char* name) {
  if (const CoreTable* other = OtherPrimary()) return other->domain_create(name);
  if (name == nullptr || *name == '\0' || strcmp(name, "default") == 0) return Handle(ring::kDomainDefault);
  if (strcmp(name, "communication") == 0) return Handle(ring::kDomainCommunication);
  uint32_t index = ring::kDomainCommunication + 1;
  uint32_t count = g_domain_count.load(std::memory_order_acquire);
  for (; index < count; ++index) {
    if (SameName(index, name)) return Handle(index);
  }
  SlowPath slow_path;
  if (!slow_path.entered()) return Handle(ring::kDomainDefault);
  for (count = g_domain_count.load(std::memory_order_relaxed); index < count; ++index) {
    if (SameName(index, name)) return Handle(index);
  }
  if (count == ring::kMaxDomains) return Handle(ring::kDomainDefault);
  strncpy(g_names[count], name, ring::kDomainNameBytes - 1);
  // The segment learns of it first: a reader faults a segment whose records name an unknown domain.
  if (ring::SegmentHeader* header = CurrentHeader()) {
    memcpy(header->domain_names[count], g_names[count], ring::kDomainNameBytes);
    header->domains.store(count + 1, std::memory_order_release);
  }
  g_domain_count.store(count + 1, std::memory_order_release);
  return Handle(count);
}

void PublishDomains(ring::SegmentHeader& header) {
  strcpy(header.domain_names[ring::kDomainDefault], "default");
  strcpy(header.domain_names[ring::kDomainCommunication], "communication");
  const uint32_t count = g_domain_count.load(std::memory_order_relaxed);
  for (uint32_t i = ring::kDomainCommunication + 1; i < count; ++i) {
    memcpy(header.domain_names[i], g_names[i], ring::kDomainNameBytes);
  }
  header.domains.store(count, std::memory_order_release);
}

}  // namespace taskd::worker
