#include "store/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::store {
namespace {

// A larger buffer is freed when it has been read, so that idle connections hold none.
constexpr size_t kKeptBufferBytes = 4096;
constexpr size_t kKeptStrings = 16;

struct Shape {
  const char* name;
  uint8_t keys;
  uint8_t values;
  uint8_t number_bytes;
  bool counted;  // a count comes first, then as many keys and values
};

constexpr Shape ShapeOf(StoreOp op) {
  switch (op) {
    case StoreOp::kSet:
      return {"SET", 1, 1, 0, false};
    case StoreOp::kCompareSet:
      return {"COMPARE_SET", 1, 2, 0, false};
    case StoreOp::kGet:
      return {"GET", 1, 0, 0, false};
    case StoreOp::kAdd:
      return {"ADD", 1, 0, 8, false};
    case StoreOp::kCheck:
      return {"CHECK", 1, 0, 0, true};
    case StoreOp::kWait:
      return {"WAIT", 1, 0, 0, true};
    case StoreOp::kCancelWait:
      return {"CANCEL_WAIT", 0, 0, 0, false};
    case StoreOp::kNumKeys:
      return {"GETNUMKEYS", 0, 0, 0, false};
    case StoreOp::kDelete:
      return {"DELETE_KEY", 1, 0, 0, false};
    case StoreOp::kAppend:
      return {"APPEND", 1, 1, 0, false};
    case StoreOp::kMultiGet:
      return {"MULTI_GET", 1, 0, 0, true};
    case StoreOp::kMultiSet:
      return {"MULTI_SET", 1, 1, 0, true};
    case StoreOp::kQueuePush:
      return {"QUEUE_PUSH", 1, 1, 0, false};
    case StoreOp::kQueuePop:
      return {"QUEUE_POP", 1, 0, 0, false};
    case StoreOp::kQueueLen:
      return {"QUEUE_LEN", 1, 0, 0, false};
    case StoreOp::kListKeys:
      return {"LIST_KEYS", 0, 0, 0, false};
    case StoreOp::kBarrier:
      return {"BARRIER", 1, 0, 8, false};
    case StoreOp::kPing:
      return {"PING", 0, 0, 4, false};
    case StoreOp::kWatchKey:
      return {"WATCH_KEY", 1, 0, 0, false};
  }
  return {"unknown", 0, 0, 0, false};
}

// These are the operations of a dialect in the order of their type numbers.
constexpr std::array<StoreOp, 13> kTypes1x = {
    StoreOp::kSet, StoreOp::kCompareSet, StoreOp::kGet, StoreOp::kAdd, StoreOp::kCheck, StoreOp::kWait,
    StoreOp::kNumKeys, StoreOp::kWatchKey, StoreOp::kDelete,
    // Only builds of mid-2023 have these.
    StoreOp::kAppend, StoreOp::kMultiGet, StoreOp::kMultiSet, StoreOp::kCancelWait};
constexpr size_t kReleasedTypes1x = 9;
constexpr std::array<StoreOp, 12> kTypes21 = {StoreOp::kSet,      StoreOp::kCompareSet, StoreOp::kGet,
                                              StoreOp::kAdd,      StoreOp::kCheck,      StoreOp::kWait,
                                              StoreOp::kNumKeys,  StoreOp::kDelete,     StoreOp::kAppend,
                                              StoreOp::kMultiGet, StoreOp::kMultiSet,   StoreOp::kCancelWait};
// The types begin with 1; 0 is VALIDATE.
constexpr std::array<StoreOp, 18> kTypes22 = {
    StoreOp::kSet,      StoreOp::kCompareSet, StoreOp::kGet,    StoreOp::kAdd,       StoreOp::kCheck,
    StoreOp::kWait,     StoreOp::kNumKeys,    StoreOp::kDelete, StoreOp::kAppend,    StoreOp::kMultiGet,
    StoreOp::kMultiSet, StoreOp::kCancelWait, StoreOp::kPing,   StoreOp::kQueuePush, StoreOp::kQueuePop,
    StoreOp::kQueueLen, StoreOp::kListKeys,   StoreOp::kBarrier};

template <typename T>
void AppendNumber(T number, std::string& out) {
  char bytes[sizeof(number)];
  memcpy(bytes, &number, sizeof(number));
  out.append(bytes, sizeof(bytes));
}

void AppendString(std::string_view text, std::string& out) {
  AppendNumber<uint64_t>(text.size(), out);
  out.append(text);
}

// Returns an empty text if the value is missing, so that the client stays in step with the stream.
std::string_view FirstOf(const StoreReply& reply) {
  return reply.values.empty() ? std::string_view() : reply.values[0];
}

template <size_t N>
int TypeIn(const std::array<StoreOp, N>& types, size_t count, StoreOp op) {
  const auto end = types.begin() + count;
  const auto at = std::find(types.begin(), end, op);
  return at == end ? -1 : static_cast<int>(at - types.begin());
}

// Returns -1 if the dialect lacks the operation.
int TypeOf(StoreDialect dialect, StoreOp op) {
  switch (dialect) {
    case StoreDialect::k1x:
      return TypeIn(kTypes1x, kReleasedTypes1x, op);
    case StoreDialect::k21:
      return TypeIn(kTypes21, kTypes21.size(), op);
    case StoreDialect::k22: {
      const int type = TypeIn(kTypes22, kTypes22.size(), op);
      return type < 0 ? type : type + 1;
    }
    case StoreDialect::kUnknown:
      break;
  }
  return -1;
}

}  // namespace

absl::Status StoreParser::Feed(std::string_view bytes) {
  if (!error_.ok()) return error_;
  // Moves the rest to the front only if it is smaller than the part before it.
  if (position_ > 0 && position_ >= buffer_.size() / 2) {
    buffer_.erase(0, position_);
    position_ = 0;
  }
  buffer_.append(bytes);
  if (peer_ == Peer::kUnknown) Open();
  return error_;
}

// Recognises the kind of peer. A first byte of 0 begins VALIDATE, one of TaskD's magics, or the SET of an old client.
// In a SET the next four bytes are the low half of a key's length; a length that equals a magic is beyond the limit.
void StoreParser::Open() {
  if (buffer_.empty()) return;
  if (buffer_[0] != 0) {
    peer_ = Peer::kClient;
    // This is checked here and not in Next(), so that Feed() reports HTTP and the like.
    const uint8_t type = static_cast<uint8_t>(buffer_[0]);
    if (type >= kTypes1x.size()) {
      error_ = absl::InvalidArgumentError(absl::StrCat(
          "the first byte is ", type, ": no client of a TCPStore begins so, types are 0 to ", kTypes1x.size() - 1));
    }
    return;
  }
  uint32_t magic;
  if (buffer_.size() < 1 + sizeof(magic)) return;
  memcpy(&magic, buffer_.data() + 1, sizeof(magic));
  peer_ = Peer::kClient;
  if (magic == kValidateMagic) {
    proven_ = StoreDialect::k22;
  } else if (magic == kTierMagic) {
    peer_ = Peer::kTier;
  } else if (service_magic_ != 0 && magic == service_magic_) {
    peer_ = Peer::kService;
  } else if (magic > kMaxKeyBytes) {
    error_ = absl::InvalidArgumentError(absl::StrCat("begins with 0 and ", absl::Hex(magic, absl::kZeroPad8),
                                                     ", which is neither a magic nor the length of a key"));
    return;
  } else {
    return;
  }
  position_ = 1 + sizeof(magic);
}

absl::StatusOr<bool> StoreParser::Next(StoreRequest& request) {
  if (peer_ != Peer::kClient || !error_.ok()) return false;
  while (step_ != Step::kDone) {
    const size_t before = available();
    const Step step = step_;
    error_ = ReadStep();
    if (!error_.ok()) return error_;
    if (available() == before && step_ == step) break;
  }
  if (available() == 0) {
    position_ = 0;
    if (buffer_.capacity() > kKeptBufferBytes) {
      std::string().swap(buffer_);  // an assignment would keep the memory
    } else {
      buffer_.clear();
    }
  }
  if (step_ != Step::kDone) return false;
  std::swap(request, request_);
  // The caller's old request is used next, so that its vectors' memory is reused, unless it is big.
  request_.keys.clear();
  request_.values.clear();
  if (request_.keys.capacity() > kKeptStrings) std::vector<std::string>().swap(request_.keys);
  if (request_.values.capacity() > kKeptStrings) std::vector<std::string>().swap(request_.values);
  request_.number = 0;
  request_bytes_ = 0;
  step_ = Step::kType;
  return true;
}

bool StoreParser::Take(void* value, size_t size) {
  if (available() < size) return false;
  memcpy(value, buffer_.data() + position_, size);
  position_ += size;
  request_bytes_ += size;
  return true;
}

// Reads the available bytes of one step. The step stays the same while bytes are missing.
absl::Status StoreParser::ReadStep() {
  switch (step_) {
    case Step::kType: {
      uint8_t type;
      if (!Take(&type, 1)) return absl::OkStatus();
      return ReadType(type);
    }
    case Step::kCount: {
      uint64_t count;
      if (!Take(&count, sizeof(count))) return absl::OkStatus();
      const Shape shape = ShapeOf(request_.op);
      if (count > kMaxKeys) {
        return absl::InvalidArgumentError(
            absl::StrCat(shape.name, ": ", count, " keys are more than the limit of ", kMaxKeys));
      }
      strings_left_ = count * (shape.keys + shape.values);
      step_ = strings_left_ > 0 ? Step::kLength : Step::kDone;
      return absl::OkStatus();
    }
    case Step::kLength: {
      uint64_t length;
      if (!Take(&length, sizeof(length))) return absl::OkStatus();
      return ReadLength(length);
    }
    case Step::kBody:
      ReadBody();
      return absl::OkStatus();
    case Step::kNumber:
      if (request_.op == StoreOp::kPing) {
        uint32_t nonce;
        if (!Take(&nonce, sizeof(nonce))) return absl::OkStatus();
        request_.number = nonce;
      } else if (!Take(&request_.number, sizeof(request_.number))) {
        return absl::OkStatus();
      }
      step_ = Step::kDone;
      return absl::OkStatus();
    case Step::kDone:
      break;
  }
  return absl::OkStatus();
}

absl::Status StoreParser::ReadType(uint8_t type) {
  if (proven_ == StoreDialect::k22) {
    if (type == 0) return absl::InvalidArgumentError("request type 0: VALIDATE comes once, and first");
    if (type > kTypes22.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("request type ", type, ": a client of 2.2 or later has types 1 to ", kTypes22.size()));
    }
    request_.op = kTypes22[type - 1];
  } else {
    if (type >= kTypes1x.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("request type ", type, ": a client without VALIDATE has types 0 to ", kTypes1x.size() - 1));
    }
    if (proven_ == StoreDialect::kUnknown && type >= kReleasedTypes1x) {
      // Released 1.x clients lack these types, and 2.1 lacks type 12.
      proven_ = type < kTypes21.size() ? StoreDialect::k21 : StoreDialect::k1x;
    }
    if (dialect() == StoreDialect::k1x) {
      request_.op = kTypes1x[type];
    } else if (type < kTypes21.size()) {
      request_.op = kTypes21[type];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("request type ", type, ": a client of 2.1 has types 0 to ", kTypes21.size() - 1));
    }
  }
  const Shape shape = ShapeOf(request_.op);
  if (shape.counted) {
    step_ = Step::kCount;
  } else if (shape.keys > 0) {
    strings_left_ = shape.keys + shape.values;
    step_ = Step::kLength;
  } else {
    step_ = shape.number_bytes > 0 ? Step::kNumber : Step::kDone;
  }
  return absl::OkStatus();
}

bool StoreParser::NextIsKey() const {
  const Shape shape = ShapeOf(request_.op);
  if (!shape.counted) return request_.keys.empty();
  return shape.values == 0 || request_.keys.size() == request_.values.size();
}

absl::Status StoreParser::ReadLength(uint64_t length) {
  const bool is_key = NextIsKey();
  const uint64_t limit = is_key ? kMaxKeyBytes : kMaxValueBytes;
  if (length > limit) {
    return absl::InvalidArgumentError(absl::StrCat(ShapeOf(request_.op).name, ": a ", is_key ? "key" : "value", " of ",
                                                   length, " bytes is longer than the limit of ", limit));
  }
  if (request_bytes_ + length > kMaxRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShapeOf(request_.op).name, ": more than the limit of ", kMaxRequestBytes, " bytes"));
  }
  (is_key ? request_.keys : request_.values).emplace_back();
  body_is_key_ = is_key;
  body_left_ = length;
  step_ = Step::kBody;
  ReadBody();
  return absl::OkStatus();
}

void StoreParser::ReadBody() {
  std::string& text = body();
  const size_t size = std::min<uint64_t>(available(), body_left_);
  // The whole length is reserved only once half of it has come, so that memory follows the received bytes.
  const uint64_t length = text.size() + body_left_;
  if (text.size() + size >= length / 2) text.reserve(length);
  text.append(buffer_, position_, size);
  position_ += size;
  request_bytes_ += size;
  body_left_ -= size;
  if (body_left_ == 0) FinishItem();
}

void StoreParser::FinishItem() {
  if (--strings_left_ > 0) {
    step_ = Step::kLength;
  } else {
    step_ = ShapeOf(request_.op).number_bytes > 0 ? Step::kNumber : Step::kDone;
  }
}

std::string StoreParser::TakeRest() {
  std::string rest = buffer_.substr(position_);
  std::string().swap(buffer_);
  position_ = 0;
  return rest;
}

void AppendReply(StoreOp op, const StoreReply& reply, std::string& out) {
  switch (op) {
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kMultiSet:
    case StoreOp::kQueuePush:
    case StoreOp::kWatchKey:
      return;
    case StoreOp::kAdd:
    case StoreOp::kNumKeys:
    case StoreOp::kDelete:
    case StoreOp::kQueueLen:
      AppendNumber<int64_t>(reply.number, out);
      return;
    case StoreOp::kPing:
      AppendNumber<uint32_t>(static_cast<uint32_t>(reply.number), out);
      return;
    case StoreOp::kCheck:
      out.push_back(reply.number != 0 ? 0 : 1);
      return;
    case StoreOp::kWait:
    case StoreOp::kBarrier:
      out.push_back(0);
      return;
    case StoreOp::kCancelWait:
      out.push_back(1);
      return;
    case StoreOp::kGet:
    case StoreOp::kCompareSet:
      AppendString(FirstOf(reply), out);
      return;
    case StoreOp::kMultiGet:
      for (const std::string& value : reply.values) AppendString(value, out);
      return;
    case StoreOp::kQueuePop:
      AppendNumber<int64_t>(reply.number, out);
      if (reply.number > 0) AppendString(FirstOf(reply), out);
      return;
    case StoreOp::kListKeys:
      AppendNumber<int64_t>(static_cast<int64_t>(reply.values.size()), out);
      for (const std::string& key : reply.values) AppendString(key, out);
      return;
  }
}

absl::Status AppendRequest(StoreDialect dialect, const StoreRequest& request, std::string& out) {
  const Shape shape = ShapeOf(request.op);
  const int type = TypeOf(dialect, request.op);
  if (type < 0) return absl::InvalidArgumentError(absl::StrCat(shape.name, ": not an operation of the dialect"));
  const bool whole = shape.counted ? request.values.size() == shape.values * request.keys.size()
                                   : request.keys.size() == shape.keys && request.values.size() == shape.values;
  if (!whole) {
    return absl::InvalidArgumentError(absl::StrCat(shape.name, ": ", request.keys.size(), " keys and ",
                                                   request.values.size(), " values do not make one"));
  }
  out.push_back(static_cast<char>(type));
  if (shape.counted) AppendNumber<uint64_t>(request.keys.size(), out);
  if (request.op == StoreOp::kMultiSet) {
    for (size_t i = 0; i < request.keys.size(); ++i) {
      AppendString(request.keys[i], out);
      AppendString(request.values[i], out);
    }
  } else {
    for (const std::string& key : request.keys) AppendString(key, out);
    for (const std::string& value : request.values) AppendString(value, out);
  }
  if (shape.number_bytes == sizeof(uint32_t)) AppendNumber<uint32_t>(static_cast<uint32_t>(request.number), out);
  if (shape.number_bytes == sizeof(int64_t)) AppendNumber<int64_t>(request.number, out);
  return absl::OkStatus();
}

}  // namespace taskd::store
