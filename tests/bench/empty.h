#pragma once

extern "C" void bench_empty_mark(const char* name, void* stream);
