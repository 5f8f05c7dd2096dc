// What a call into another library costs when that does nothing: the measure for a mark that is switched off.
#include "empty.h"

void bench_empty_mark(const char*, void*) {}
