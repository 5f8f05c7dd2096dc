// Requests and replies as text, for what a failing test prints.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "store/request.h"

namespace taskd::testing {

inline std::string Short(const std::string& text) {
  return text.size() <= 24 ? text : absl::StrCat(text.substr(0, 8), "...", text.size(), " bytes");
}

inline std::string Short(const std::vector<std::string>& texts) {
  return absl::StrJoin(texts, ",",
                       [](std::string* out, const std::string& text) { absl::StrAppend(out, "'", Short(text), "'"); });
}

inline const char* OpName(store::StoreOp op) {
  static const char* const kNames[] = {"?",         "SET",       "COMPARE_SET", "GET",        "ADD",
                                       "CHECK",     "WAIT",      "CANCEL",      "NUMKEYS",    "DELETE",
                                       "APPEND",    "MULTI_GET", "MULTI_SET",   "QUEUE_PUSH", "QUEUE_POP",
                                       "QUEUE_LEN", "LIST_KEYS", "BARRIER",     "PING",       "WATCH_KEY"};
  return kNames[static_cast<size_t>(op)];
}

inline std::string Describe(const store::StoreRequest& request) {
  return absl::StrCat(OpName(request.op), " keys [", Short(request.keys), "] values [", Short(request.values),
                      "] number ", request.number);
}

inline std::string Describe(const store::StoreReply& reply) {
  return absl::StrCat("number ", reply.number, " values [", Short(reply.values), "]");
}

inline const char* DialectName(store::StoreDialect dialect) {
  return dialect == store::StoreDialect::k1x ? "1.x" : dialect == store::StoreDialect::k21 ? "2.1" : "2.2";
}

}  // namespace taskd::testing
