// The options that `taskd run` knows without --mode: torchrun's, and some of its own.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/option_words.h"

namespace taskd::run {

extern const OptionTable kRunOptionTable;

// INVALID_ARGUMENT: "--nnodes '0': <rule>"
absl::Status WrongOption(const GivenOption& given, std::string_view rule);

}  // namespace taskd::run
