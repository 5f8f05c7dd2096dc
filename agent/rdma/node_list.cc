#include "agent/rdma/node_list.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_set>

#include "common/utf8.h"
#include "fmt/format.h"

namespace taskd::rdma {
namespace {

// Whether `text` is an IPv6 address; `canonical` gets the one way to write it.
bool IsIpv6(std::string_view text, std::string& canonical) {
  in6_addr address;
  char written[INET6_ADDRSTRLEN];
  if (inet_pton(AF_INET6, std::string(text).c_str(), &address) != 1) return false;
  canonical = inet_ntop(AF_INET6, &address, written, sizeof written);
  return true;
}

bool HasBlankOrControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f; });
}

std::string Shown(std::string_view entry) {
  std::string shown = CutUtf8(entry, 200);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return shown;
}

}  // namespace

absl::StatusOr<std::vector<NodeEntry>> ParseNodeList(std::string_view value) {
  if (value.empty()) return absl::InvalidArgumentError("NODE_LIST: it is empty; it lists nodes as host:cards");
  std::vector<NodeEntry> nodes;
  std::unordered_set<std::string> seen;
  for (size_t number = 1, begin = 0; begin <= value.size(); ++number) {
    const std::string_view entry = value.substr(begin, value.find(',', begin) - begin);
    begin += entry.size() + 1;
    const auto bad = [&](std::string_view why) {
      return absl::InvalidArgumentError(fmt::format("NODE_LIST: entry {}, '{}': {}", number, Shown(entry), why));
    };
    std::string canonical;
    if (IsIpv6(entry, canonical)) return bad("an IPv6 address goes into brackets: [::1]:8");
    const size_t colon = entry.rfind(':');
    if (colon == entry.npos || (entry.front() == '[' && entry.back() == ']')) return bad("it is not host:cards");
    std::string_view host = entry.substr(0, colon);
    const std::string_view cards = entry.substr(colon + 1);
    if (host.empty()) return bad("the host is empty");
    if (HasBlankOrControl(host)) return bad("the host has a blank in it");
    if (host.front() == '-') return bad("the host begins with '-', which programs take for an option");
    if (host.front() == '[') {
      if (host.back() != ']' || !IsIpv6(host.substr(1, host.size() - 2), canonical)) {
        return bad("what stands in brackets is an IPv6 address");
      }
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != host.npos) {
      return bad("an IPv6 address goes into brackets: [::1]:8");
    } else {
      canonical = host;
    }
    NodeEntry node;
    node.host = host;
    const char* end = cards.data() + cards.size();
    const auto parsed = std::from_chars(cards.data(), end, node.cards);
    if (parsed.ec != std::errc() || parsed.ptr != end || node.cards < 0 || cards.front() == '-') {
      return bad("the cards are not an integer of 0 or more");
    }
    if (!seen.insert(canonical).second) return bad("the host is there twice");
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace taskd::rdma
