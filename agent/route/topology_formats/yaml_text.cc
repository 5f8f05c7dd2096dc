#include "agent/route/topology_formats/yaml_text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kValueBytes = 160;  // of a value in a list or an object that has doubled, beside its text
constexpr size_t kLineBytes = 48;

struct Line {
  size_t number = 0;
  size_t indent = 0;
  std::string_view text;  // without its indentation, a comment and blanks at the end
  std::string_view raw;   // the whole line
};

bool IsDocumentEnd(std::string_view text) { return text == "---" || text == "..." || text.starts_with("--- "); }
bool IsItem(std::string_view text) { return text == "-" || text.starts_with("- "); }

// Returns the position behind the closing quote of the text that begins at `begin`; npos: the quote is missing.
size_t EndOfQuoted(std::string_view text, size_t begin) {
  const char quote = text[begin];
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 == text.size() || text[i + 1] != '\'') return i + 1;
      ++i;
    }
  }
  return std::string_view::npos;
}

std::string_view WithoutComment(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t';
    if (text[i] == '#' && begins) return Trim(text.substr(0, i));
    const bool may_quote = i == 0 || std::string_view(" [{,:").find(text[i - 1]) != std::string_view::npos;
    if ((text[i] != '"' && text[i] != '\'') || !may_quote) continue;
    const size_t end = EndOfQuoted(text, i);
    if (end == std::string_view::npos) return Trim(text);
    i = end - 1;
  }
  return Trim(text);
}

// Returns the end of the key in "key: value"; npos: the line has no key.
size_t EndOfKey(std::string_view text) {
  size_t from = 0;
  if (!text.empty() && (text[0] == '"' || text[0] == '\'')) from = EndOfQuoted(text, 0);
  if (from == std::string_view::npos || (!text.empty() && (text[0] == '[' || text[0] == '{')))
    return std::string_view::npos;
  for (size_t i = from; i < text.size(); ++i) {
    if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\t')) return i;
  }
  return std::string_view::npos;
}

class YamlReader {
 public:
  YamlReader(std::string_view text, InputBudget& budget) : budget_(budget) {
    std::string_view line;
    for (size_t number = 1; NextLine(text, line); ++number) {
      const size_t indent = std::min(line.find_first_not_of(' '), line.size());
      budget_.Take(kLineBytes);
      lines_.push_back({number, indent, WithoutComment(line.substr(indent)), line});
    }
  }

  absl::StatusOr<Json> Read() {
    Json documents = Json::array();
    while (Next() != nullptr) {
      if (IsDocumentEnd(Next()->text)) {
        std::string_view rest = Next()->text.substr(3);
        lines_[at_].text = Trim(rest);  // "--- # comment" and "--- value"
        if (lines_[at_].text.empty()) ++at_;
        continue;
      }
      Json document = Value(Next()->indent, 0);
      if (Next() != nullptr && !IsDocumentEnd(Next()->text)) Fail("is not indented as what stands before it");
      if (!failed_.ok()) return failed_;
      if (!document.is_null()) documents.push_back(std::move(document));
    }
    if (!budget_.status().ok()) return budget_.status();
    return documents;
  }

 private:
  // The next line that is not empty; null: there is none.
  Line* Next() {
    while (at_ < lines_.size() && lines_[at_].text.empty()) ++at_;
    return at_ < lines_.size() && failed_.ok() ? &lines_[at_] : nullptr;
  }

  // Records the error and ends the reading.
  void Fail(std::string_view why) {
    const Line& line = lines_[std::min(at_, lines_.size() - 1)];
    failed_ = absl::InvalidArgumentError(fmt::format("line {}: {} {}", line.number, Quoted(line.text), why));
    if (!budget_.status().ok()) failed_ = budget_.status();
  }
  bool Take(size_t bytes) {
    if (!budget_.Take(bytes)) failed_ = budget_.status();
    return failed_.ok();
  }

  // The collection or scalar that begins at the next line, which is indented by `indent`.
  Json Value(size_t indent, int depth) {
    if (depth == kMaxDepth) {
      Fail("is nested too deeply");
      return nullptr;
    }
    if (IsItem(Next()->text)) return List(indent, depth);
    if (EndOfKey(Next()->text) != std::string_view::npos) return Object(indent, depth);
    const std::string_view text = Next()->text;
    Json scalar = Scalar(text, depth);
    if (failed_.ok()) ++at_;
    return scalar;
  }

  Json List(size_t indent, int depth) {
    Json list = Json::array();
    while (Next() != nullptr && Next()->indent == indent && IsItem(Next()->text) && Take(kValueBytes)) {
      Line& line = *Next();
      const size_t skipped = std::min(line.text.find_first_not_of(' ', 1), line.text.size());
      if (skipped == line.text.size()) {
        ++at_;
        list.push_back(Below(indent + 1, depth));
      } else {
        // The text behind the dash has its own column as indentation.
        line.indent += skipped;
        line.text.remove_prefix(skipped);
        list.push_back(Value(line.indent, depth + 1));
      }
    }
    return list;
  }

  Json Object(size_t indent, int depth) {
    Json object = Json::object();
    while (Next() != nullptr && Next()->indent == indent && !IsItem(Next()->text) && !IsDocumentEnd(Next()->text)) {
      const std::string_view text = Next()->text;
      const size_t end = EndOfKey(text);
      if (end == std::string_view::npos) {
        Fail("is not \"key: value\"");
        break;
      }
      const Json key = Scalar(Trim(text.substr(0, end)), depth);
      if (!failed_.ok() || !Take(kValueBytes + text.size())) break;
      if (!key.is_string() || object.contains(key.get_ref<const std::string&>())) {
        Fail(key.is_string() ? "has a key for the second time" : "has no key");
        break;
      }
      const std::string_view value = Trim(text.substr(end + 1));
      Json& place = object[key.get_ref<const std::string&>()];
      if (!value.empty() && (value[0] == '|' || value[0] == '>')) {
        ++at_;
        place = Literal(indent);
      } else if (!value.empty()) {
        place = Scalar(value, depth);
        if (failed_.ok()) ++at_;
        const bool is_plain = place.is_string() && value[0] != '"' && value[0] != '\'';
        while (is_plain && Next() != nullptr && Next()->indent > indent) {  // a long text goes on
          if (!Take(Next()->text.size() + 1)) break;
          place.get_ref<std::string&>() += fmt::format(" {}", Next()->text);
          ++at_;
        }
      } else {
        ++at_;
        // A list may stand in the column of its key.
        const bool is_list = Next() != nullptr && Next()->indent == indent && IsItem(Next()->text);
        place = is_list ? List(indent, depth + 1) : Below(indent + 1, depth);
      }
    }
    return object;
  }

  // What is indented by `indent` or more; null: nothing is.
  Json Below(size_t indent, int depth) {
    if (Next() == nullptr || Next()->indent < indent || IsDocumentEnd(Next()->text)) return nullptr;
    return Value(Next()->indent, depth + 1);
  }

  // The lines that are indented more than `indent`, comments and empty ones too.
  Json Literal(size_t indent) {
    std::string text;
    for (; at_ < lines_.size(); ++at_) {
      const std::string_view raw = lines_[at_].raw;
      if (!Trim(raw).empty() && lines_[at_].indent <= indent) break;
      if (!Take(raw.size() + 1)) break;
      text += Trim(raw);
      text += '\n';
    }
    return text;
  }

  // A scalar, or a flow collection on one line.
  Json Scalar(std::string_view text, int depth) {
    Json value = Flow(text, depth, false);
    if (failed_.ok() && !Trim(text).empty()) Fail("goes on behind a value");
    return value;
  }

  Json Flow(std::string_view& text, int depth, bool is_in_flow) {
    text = Trim(text);
    if (!Take(kValueBytes)) return nullptr;
    if (depth >= kMaxDepth) {
      Fail("is nested too deeply");
      return nullptr;
    }
    if (text.empty()) return nullptr;
    if (text[0] == '[' || text[0] == '{') return FlowCollection(text, depth);
    if (text[0] == '"' || text[0] == '\'') return QuotedText(text);
    if (std::string_view("&*!%@`|>").find(text[0]) != std::string_view::npos) {
      Fail("is YAML that is not read here (anchors, tags, complex keys)");
      return nullptr;
    }
    const size_t end = is_in_flow ? std::min(text.find_first_of(",]}"), text.size()) : text.size();
    const std::string_view plain = Trim(text.substr(0, end));
    text.remove_prefix(end);
    if (plain.empty() || plain == "~" || plain == "null") return nullptr;
    return Take(plain.size()) ? Json(std::string(plain)) : Json();
  }

  Json FlowCollection(std::string_view& text, int depth) {
    const bool is_list = text[0] == '[';
    const char close = is_list ? ']' : '}';
    Json all = is_list ? Json::array() : Json::object();
    for (text = Trim(text.substr(1)); failed_.ok(); text = Trim(text.substr(1))) {
      if (text.starts_with(close)) break;
      std::string key;
      if (!is_list) {
        const size_t end = EndOfKey(text);
        if (end == std::string_view::npos) {
          Fail("has a part that is not \"key: value\"");
          break;
        }
        std::string_view name = Trim(text.substr(0, end));
        const Json read = Flow(name, depth + 1, false);
        key = read.is_string() ? read.get<std::string>() : "";
        text.remove_prefix(end + 1);
      }
      Json value = Flow(text, depth + 1, true);
      if (!failed_.ok()) break;
      is_list ? all.push_back(std::move(value)) : void(all[key] = std::move(value));
      text = Trim(text);
      if (text.starts_with(close)) break;
      if (text.starts_with(',')) continue;
      Fail("does not end on this line");
      break;
    }
    if (failed_.ok()) text.remove_prefix(1);
    return all;
  }

  Json QuotedText(std::string_view& text) {
    const size_t end = EndOfQuoted(text, 0);
    if (end == std::string_view::npos) {
      Fail("has a quote that does not end on this line");
      return nullptr;
    }
    const std::string_view quoted = text.substr(0, end);
    text.remove_prefix(end);
    if (!Take(quoted.size())) return nullptr;
    if (quoted[0] == '"') {
      Json value = Json::parse(quoted.begin(), quoted.end(), nullptr, false);
      if (value.is_discarded()) Fail("has an escape that is not read here");
      return value.is_discarded() ? Json() : value;
    }
    std::string plain;
    for (size_t i = 1; i + 1 < quoted.size(); ++i) {
      if (quoted[i] == '\'') ++i;
      plain += quoted[i];
    }
    return plain;
  }

  InputBudget& budget_;
  std::vector<Line> lines_;
  size_t at_ = 0;
  absl::Status failed_;
};

}  // namespace

bool LooksLikeYaml(std::string_view text) {
  std::string_view line;
  while (NextLine(text, line)) {
    std::string_view begin = WithoutComment(Trim(line));
    if (begin.empty()) continue;
    if (IsDocumentEnd(begin)) return true;
    if (begin.starts_with("- ")) begin = Trim(begin.substr(1));
    const size_t end = EndOfKey(begin);
    return end != std::string_view::npos && begin.substr(0, end).find_first_of(" \t") == std::string_view::npos;
  }
  return false;
}

absl::StatusOr<nlohmann::json> ParseYaml(std::string_view text, InputBudget& budget) {
  return YamlReader(text, budget).Read();
}

}  // namespace taskd::route
