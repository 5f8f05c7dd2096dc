// What a fuzz target offers: the libFuzzer entry point, and seeds for the driver that stands in where there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Well-formed inputs.
std::vector<std::string> FuzzSeeds();

// Ends the program with a message: the input broke a promise.
#define FUZZ_CHECK(condition)                                                         \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                        \
    }                                                                                 \
  } while (false)
