// The C API of taskd/taskd.h.
#include "recorder.h"

using taskd::worker::DomainRecord;
using taskd::worker::Record;
using taskd::worker::RecordRangeEnd;

TASKD_EXPORT int taskd_worker_init(int rank, int local_rank, int disk_limit_mb) {
  return taskd::worker::Init(rank, local_rank, disk_limit_mb);
}

TASKD_EXPORT int taskd_worker_start() { return taskd::worker::Start(); }

TASKD_EXPORT int taskd_worker_destroy() { return taskd::worker::Destroy(); }

TASKD_EXPORT uint32_t taskd_enabled_kinds() { return taskd::worker::EnabledKinds(); }

TASKD_EXPORT void taskd_mark(const char* name) { Record<taskd::ring::kRecordMark>(name, false); }

TASKD_EXPORT uint64_t taskd_range_start(const char* name) {
  return Record<taskd::ring::kRecordRangeStart>(name, false);
}

TASKD_EXPORT void taskd_range_end(uint64_t id) { RecordRangeEnd(id); }

TASKD_EXPORT taskd_domain* taskd_domain_create(const char* name) { return taskd::worker::CreateDomain(name); }

TASKD_EXPORT void taskd_domain_mark(taskd_domain* domain, const char* name) {
  DomainRecord<taskd::ring::kRecordMark>(domain, name, false);
}

TASKD_EXPORT uint64_t taskd_domain_range_start(taskd_domain* domain, const char* name) {
  return DomainRecord<taskd::ring::kRecordRangeStart>(domain, name, false);
}

TASKD_EXPORT int taskd_worker_get_stats(taskd_worker_stats* stats) { return taskd::worker::GetStats(stats); }
