// What the ranks' communication libraries tell of a hang, as launchers report it, and what that makes of the answer that
// the ranks' steps gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "manager/supervision/hang_watch.h"

namespace taskd::manager {

// taskd.v1.HangEvidence.
struct HangEvidence {
  struct Source {
    std::string path;
    std::string format;
    int rank = -1;  // -1: none
    uint64_t records = 0;
    std::string note;
  };

  uint64_t hang = 0;         // HangVerdict::number
  bool is_found = false;     // below: who waits for whom. Else there are notes and sources only
  std::vector<int> origins;  // whom everybody else waits for; empty: that cannot be told
  std::string kind;          // "missing", "order", "size", "type", "unknown"
  std::string group;
  std::string operation;
  uint64_t since_ns = 0;            // Unix; 0: unknown
  std::string waiting;              // as ranges
  std::vector<std::string> frames;  // of the first origin, the innermost first
  std::string text;                 // one sentence
  std::vector<std::string> notes;
  std::vector<Source> sources;
  size_t more_sources = 0;
};

// Where the first origin of a verdict stands, by the stacks that were collected.
struct HangFrames {
  std::vector<std::string> frames;  // the innermost first
  std::string script;               // the first of them that is of the user's script; empty: unknown
};

// The answer: what `evidence` proves where it names somebody, or where steps and open ranges name nobody; else what those
// show, with what it says among the notes.
HangEvidence MergeEvidence(const HangVerdict& verdict, const HangEvidence& evidence, const HangFrames& frames = {});

}  // namespace taskd::manager
