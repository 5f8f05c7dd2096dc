#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

const char* Name(Scope scope) {
  switch (scope) {
    case Scope::kRank:
      return "rank";
    case Scope::kNode:
      return "node";
    case Scope::kLink:
      return "link";
    case Scope::kGroup:
      return "group";
    case Scope::kJob:
      return "job";
  }
  return "job";
}

const char* Name(Cause cause) {
  switch (cause) {
    case Cause::kCompute:
      return "compute";
    case Cause::kMemory:
      return "memory";
    case Cause::kDataloader:
      return "dataloader";
    case Cause::kHost:
      return "host";
    case Cause::kGc:
      return "gc";
    case Cause::kCheckpoint:
      return "checkpoint";
    case Cause::kNetwork:
      return "network";
    case Cause::kIntraNodeLink:
      return "intra_node_link";
    case Cause::kPpLink:
      return "pp_link";
    case Cause::kFabric:
      return "fabric";
    case Cause::kConfig:
      return "config";
    case Cause::kUnknown:
      return "unknown";
  }
  return "unknown";
}

const char* Name(JobState state) {
  switch (state) {
    case JobState::kOk:
      return "ok";
    case JobState::kSlow:
      return "slow";
    case JobState::kUnknown:
      return "unknown";
  }
  return "unknown";
}

const char* StateName(const Verdict& verdict) {
  return verdict.open ? "open" : verdict.unjudged ? "unjudged" : "cleared";
}

const char* Name(NoteKind kind) {
  switch (kind) {
    case NoteKind::kDesign:
      return "design";
    case NoteKind::kRotation:
      return "rotation";
    case NoteKind::kNoData:
      return "no_data";
    case NoteKind::kCoverage:
      return "coverage";
    case NoteKind::kRestless:
      return "restless";
    case NoteKind::kNotComparable:
      return "not_comparable";
    case NoteKind::kLoad:
      return "load";
    case NoteKind::kOff:
      return "off";
    case NoteKind::kShort:
      return "short";
  }
  return "short";
}

}  // namespace taskd::diagnosis
