#include "mark_names.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "name_words.h"

namespace taskd::worker {
namespace {

struct KindWord {
  const char* word;
  ring::Kind kind;
};

// The switch's words (common/switch.h), and what people write instead.
constexpr KindWord kKindWords[] = {
    {"step", ring::kKindStep},
    {"forward", ring::kKindForward},
    {"fp", ring::kKindForward},
    {"dataloader", ring::kKindDataLoader},
    {"save_checkpoint", ring::kKindSaveCheckpoint},
    {"checkpoint", ring::kKindSaveCheckpoint},
    {"communication", ring::kKindCommunication},
};

constexpr int kMaxStepDigits = 18;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Fits the whole text. `star` is where the text of the last `*` begins, `text_bytes` where there is none.
// Every `*` takes as little as it can, so only the last one is ever tried again: no more than text x pattern steps.
bool Fits(const char* pattern, int pattern_bytes, const char* text, int text_bytes, int& star) {
  int p = 0;
  int t = 0;
  int retry_p = -1;
  int retry_t = 0;
  star = text_bytes;
  while (t < text_bytes) {
    if (p < pattern_bytes && pattern[p] == '*') {
      retry_p = ++p;
      retry_t = star = t;
      continue;
    }
    const bool literal = p + 1 < pattern_bytes && pattern[p] == '\\';
    if (p < pattern_bytes && (pattern[p + (literal ? 1 : 0)] == text[t] || (!literal && pattern[p] == '?'))) {
      p += literal ? 2 : 1;
      ++t;
      continue;
    }
    if (retry_p < 0) return false;
    p = retry_p;
    t = ++retry_t;
  }
  while (p < pattern_bytes && pattern[p] == '*') ++p;
  return p == pattern_bytes;
}

// Text within JSON that is within a name: what would need an escape is not worth one.
char* AppendPlain(char* out, const char* end, const char* text, int bytes) {
  for (int i = 0; i < bytes && text[i] != '\0' && out < end; ++i) {
    const char c = text[i];
    *out++ = c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '_' : c;
  }
  return out;
}

char* Append(char* out, const char* text) {
  while (*text != '\0') *out++ = *text++;
  return out;
}

}  // namespace

ring::Kind KindOfName(const char* name) { return ClassifyName(LoadNameWord<NamePlace::kNearPageEnd>(name), name); }

void MarkNames::Parse(const char* text, Complain complain, void* argument) {
  char first_problem[256] = "";
  int problems = 0;
  rules_ = 0;
  const char* p = text == nullptr ? "" : text;
  while (*p != '\0') {
    const char* begin = p;
    while (*p != '\0' && *p != ';') p += p[0] == '\\' && p[1] != '\0' ? 2 : 1;
    const char* end = p;
    if (*p == ';') ++p;
    while (begin < end && IsBlank(*begin)) ++begin;
    // A blank that a backslash makes part of the pattern stays.
    while (end > begin && IsBlank(end[-1]) && !(end - begin >= 2 && end[-2] == '\\')) --end;
    if (begin == end) continue;

    const char* problem = nullptr;
    const char* equals = static_cast<const char*>(memchr(begin, '=', static_cast<size_t>(end - begin)));
    const KindWord* found = nullptr;
    const char* pattern = equals == nullptr ? end : equals + 1;
    while (pattern < end && IsBlank(*pattern)) ++pattern;
    if (equals == nullptr) {
      problem = "a rule is kind=pattern";
    } else {
      const char* word_end = equals;
      while (word_end > begin && IsBlank(word_end[-1])) --word_end;
      const size_t word_bytes = static_cast<size_t>(word_end - begin);
      for (const KindWord& word : kKindWords) {
        if (strlen(word.word) == word_bytes && memcmp(word.word, begin, word_bytes) == 0) found = &word;
      }
      if (found == nullptr) {
        problem = "the kind must be step, forward, dataloader, save_checkpoint or communication";
      } else if (pattern == end) {
        problem = "the pattern is empty";
      } else if (end - pattern > kMaxPatternBytes) {
        problem = "a pattern has at most 128 bytes";
      } else if (rules_ == kMaxRules) {
        problem = "there are at most 32 rules";
      }
    }
    if (problem != nullptr) {
      if (problems++ == 0) {
        // Long ones are cut: the line is for a person.
        const int shown = end - begin > 80 ? 80 : static_cast<int>(end - begin);
        snprintf(first_problem, sizeof(first_problem), "TASKD_MARK_NAMES: '%.*s' is left out: %s", shown, begin,
                 problem);
      }
      continue;
    }
    Rule& rule = rule_[rules_++];
    rule.kind = found->kind;
    rule.bytes = static_cast<uint8_t>(end - pattern);
    memcpy(rule.pattern, pattern, rule.bytes);
  }
  if (problems == 0 || complain == nullptr) return;
  if (problems == 1) return complain(first_problem, argument);
  char line[320];
  snprintf(line, sizeof(line), "%s (and %d more)", first_problem, problems - 1);
  complain(line, argument);
}

bool MarkNames::Translate(const char* name, char (&storage)[kNameBytes], Translation& out) {
  if (rules_ == 0 || KindOfName(name) != ring::kKindOther) return false;
  const int bytes = static_cast<int>(strnlen(name, ring::kMaxNameBytes));
  for (int i = 0; i < rules_; ++i) {
    const Rule& rule = rule_[i];
    int star = 0;
    if (!Fits(rule.pattern, rule.bytes, name, bytes, star)) continue;
    out.kind = rule.kind;
    out.communication = rule.kind == ring::kKindCommunication;
    if (rule.kind == ring::kKindForward) {
      out.name = "forward";
      return true;
    }
    if (rule.kind == ring::kKindDataLoader) {
      out.name = "dataloader";
      return true;
    }
    if (rule.kind == ring::kKindSaveCheckpoint) {
      out.name = "save_checkpoint";
      return true;
    }
    char* p = storage;
    out.name = storage;
    if (rule.kind == ring::kKindStep) {
      uint64_t step = 0;
      int digits = 0;
      while (star + digits < bytes && digits <= kMaxStepDigits && IsDigit(name[star + digits])) {
        step = step * 10 + static_cast<uint64_t>(name[star + digits++] - '0');
      }
      if (digits == 0 || digits > kMaxStepDigits) step = next_step_.fetch_add(1, std::memory_order_relaxed);
      p = Append(p, "step ");
      char reversed[20];
      int count = 0;
      do {
        reversed[count++] = static_cast<char>('0' + step % 10);
        step /= 10;
      } while (step != 0);
      while (count > 0) *p++ = reversed[--count];
      *p = '\0';
      return true;
    }
    // Who made the mark knows no size: 0 elements of no known type.
    p = Append(p, "{\"count\": \"0\",\"dataType\": \"na\",\"groupName\": \"user\",\"opName\": \"");
    p = AppendPlain(p, storage + kNameBytes - 4, name, bytes);
    p = Append(p, "\"}");
    *p = '\0';
    return true;
  }
  return false;
}

}  // namespace taskd::worker
