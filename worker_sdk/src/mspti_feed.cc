#include "mspti_feed.h"

#include <errno.h>
#include <stdio.h>

#include "hello_client.h"
#include "mspti.h"
#include "next_mstx.h"
#include "recorder.h"
#include "runtime.h"

namespace taskd::worker {
namespace {

constexpr int kStopMs = 1000;

ring::SegmentHeader& Header(void* context) { return *static_cast<ring::SegmentHeader*>(context); }

// What the gate asks for, of the source's thread.
uint32_t g_asked = 0;

// MSPTI has only domains, so the gate goes along and Emit sorts by it. Until a proxy spoke our own symbols record.
uint32_t Wanted(void* context) {
  ring::SegmentHeader& header = Header(context);
  const uint32_t gate = header.gate.load(std::memory_order_acquire);
  g_asked = ring::SourceDomainsOf(gate);
  if ((gate & ring::kGateUndecided) != 0) return 0;
  uint32_t domains = g_asked;
  // A rule of the user's may make communication of any name.
  if ((domains & kMsptiCommunication) != 0 && (g_plain_kinds.load(std::memory_order_relaxed) & ring::kGateOther) == 0) {
    domains |= kMsptiDefault;
  }
  // Where nothing is wanted nothing is lost by it, and another profiler sees marks. Else after the answer; again and
  // again, because mstx's library may be loaded any time.
  if (domains == 0 || (header.source_domains.load(std::memory_order_relaxed) & kMsptiAllDomains) != 0) {
    StepAside(header);
  }
  return domains | gate << kMsptiCallerShift;
}

void Answer(void* context, const MsptiAnswer* answer) {
  ring::SegmentHeader& header = Header(context);
  // MSPTI takes the marks from here on; or another profiler has it, to whom they belong.
  if (answer->wanted != 0) StepAside(header);
  const bool applied = answer->error == kMsptiOk;
  header.source_code.store(applied ? ring::SourceCodeOf(g_asked) : answer->code, std::memory_order_relaxed);
  header.source_error.store(answer->error, std::memory_order_relaxed);
  header.source_domains.store(g_asked | ring::kSourceAnswered, std::memory_order_release);
}

void Unusable(void*, const char* missing) {
  static bool warned = false;  // one thread at a time
  if (warned) return;
  warned = true;
  char line[256];
  snprintf(line, sizeof(line),
           "libmspti.so has no function %s: marks are recorded without MSPTI, so without the device's times", missing);
  Say(line);
}

// A proxy reads this ring every 50 ms; a buffer of MSPTI's may be several rings full. Without a proxy the newest
// replace the oldest, as everywhere. Relaxed: the reader has copied what is below its cursor, and asks `reserved` anyway.
bool HasRoom(const ThreadState& state) {
  if (state.slot == nullptr || !IsAttached()) return true;
  const uint64_t unread =
      state.slot->head.load(std::memory_order_relaxed) - state.slot->consumed.load(std::memory_order_relaxed);
  return unread + 2 * ring::kBlockBytes <= state.data_bytes;  // the writer is up to a block ahead of what it wrote
}

// `own_id`: the record is one that MSPTI has not, so its id is one of ours.
void Write(const MsptiMark& mark, ring::RecordType type, const NamedMark& named, uint32_t more_flags, bool own_id) {
  if (PrepareThread() == Prepared::kDropped) return;
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return;
  const uint64_t next = state.next;
  auto* words = reinterpret_cast<uint64_t*>(next);
  const uint64_t ticks = KeepOrder(state, ReadTicks());
  state.last_ticks = ticks;
  const NameCopy copied =
      CopyName<NamePlace::kNearPageEnd>(words + 4, LoadNameWord<NamePlace::kNearPageEnd>(named.name), named.name);
  const uint32_t end = ring::kRecordHeaderBytes + ((copied.bytes + 7) & ~7u);
  const uint32_t bytes = end + ring::kSourceTrailerBytes;
  const uint32_t flags = ring::kFlagSource | more_flags | FlagIf(copied.truncated, ring::kFlagTruncated);
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  StoreWord(words, ring::PackWord0(bytes, type, flags, 0) | state.tid_bits);
  StoreWord(words + 1, ticks);
  StoreWord(words + 2, own_id ? state.id_base + sequence : mark.id);
  StoreWord(words + 3, ring::PackWord3(sequence, copied.bytes, named.domain, named.kind));
  StoreWord(words + end / 8, mark.timestamp_ns);
  StoreWord(words + end / 8 + 1, uint64_t{mark.process_id} | uint64_t{mark.thread_id} << 32);
  CommitRecord(state, next + bytes, sequence);
}

bool IsWanted(const MsptiMark& mark, ring::Kind kind) { return (mark.wanted >> kMsptiCallerShift >> kind & 1) != 0; }

int Emit(void* context, const MsptiMark* mark) {
  if (mark->id >= kIdEnd) {
    Header(context).dropped.fetch_add(1, std::memory_order_relaxed);
    return 1;
  }
  if (!HasRoom(*t_state)) return 0;
  const bool stream = mark->flag >= 8;
  const uint32_t what = stream ? mark->flag >> 3 : mark->flag;
  const ring::RecordType type = what == 1   ? ring::kRecordMark
                                : what == 2 ? ring::kRecordRangeStart
                                            : ring::kRecordRangeEnd;
  const bool device = mark->source == 1;
  char storage[MarkNames::kNameBytes];
  char base[kWorkBaseBytes];
  NamedMark named = {"", ring::kDomainDefault, ring::kKindOther};
  const char* work = nullptr;
  if (!device && type != ring::kRecordRangeEnd) {
    const uint32_t domain = DomainIndex(CreateDomain(mark->domain));
    if (type == ring::kRecordRangeStart && domain == ring::kDomainDefault) {
      work = WorkSuffix(LoadNameWord<NamePlace::kNearPageEnd>(mark->name), mark->name);
    }
    if (work != nullptr) CopyBase(base, mark->name, work);
    named = NameMark(domain, work != nullptr ? base : mark->name, storage);
    if (!IsWanted(*mark, named.kind)) return 1;
  }
  Write(*mark, type, named, FlagIf(stream, ring::kFlagStream) | FlagIf(device, ring::kFlagDevice), false);
  if (work != nullptr && IsWanted(*mark, ring::kKindOther)) {
    Write(*mark, ring::kRecordMark, {work, ring::kDomainDefault, ring::kKindOther}, 0, true);
  }
  return 1;
}

}  // namespace

void StartMsptiFeed(ring::SegmentHeader& header) {
  const MsptiConfig config = {.wanted = Wanted,
                              .emit = Emit,
                              .answer = Answer,
                              .unusable = Unusable,
                              .context = &header,
                              .wake_word = reinterpret_cast<uint32_t*>(&header.gate),
                              .dropped = reinterpret_cast<uint64_t*>(&header.dropped)};
  MsptiStart(&config);
}

void StopMsptiFeed(ring::SegmentHeader& header) {
  const int saved = errno;
  // Nothing answers the gate from here on, and nothing needs to.
  if (MsptiStop(kMsptiRelease, kStopMs) == 0) header.source_domains.store(0, std::memory_order_release);
  errno = saved;
}

void ForgetMsptiFeed() {
  g_next_mstx.store(nullptr, std::memory_order_release);  // it reads the segment, which the child has not
  MsptiForgetInChild();
}

}  // namespace taskd::worker
