# What arm64_check.sh checks and runs, with the flags of worker_sdk/CMakeLists.txt and cmake/hardening.cmake.
#
#   make -f arm64_build.mk -C EMPTY_FOLDER ROOT=SOURCES [PYTHON_INCLUDE=FOLDER] [GTEST=FOLDER]
#
# PYTHON_INCLUDE: Python's headers, whose pyconfig.h lies in a folder of x86-64's. The two differ in what the stable ABI
# does not look at (assembly, the sign of wchar_t). GTEST: GoogleTest's sources, since Debian has its libraries for the
# machine's own processor only.

# It compiles nothing where it finds no room for its folder, for a user without a home, say.
CCACHE := $(shell echo >ccache_trial.c; ccache aarch64-linux-gnu-gcc -c ccache_trial.c 2>/dev/null && command -v ccache)
CXX := $(CCACHE) aarch64-linux-gnu-g++ -std=c++20
CC := $(CCACHE) aarch64-linux-gnu-gcc -std=gnu11
SDK := $(ROOT)/worker_sdk
FLAGS := -O2 -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -Wall -Wextra -Werror -fPIC \
  -fvisibility=hidden -I $(SDK)/include -include $(SDK)/src/old_glibc.h
CXXFLAGS := $(FLAGS) -fvisibility-inlines-hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics
TLS := -ftls-model=initial-exec
# Without start files and libraries of another glibc than the compiler's own.
LINK := aarch64-linux-gnu-gcc -shared -static-libgcc -Wl,--as-needed -Wl,-z,now -Wl,-z,relro
old_libraries = -Wl,--push-state,--no-as-needed $(1:%=-l:%) -Wl,--pop-state

SDK_SOURCES := api clock communication_owner domains hello_client legacy mark_names mspti_feed mstx nccl_calls \
  nccl_library next_mstx nvtx nvtx_ranges nvtx_strings primary recorder segment stack_dump
SDK_OBJECTS := $(SDK_SOURCES:%=sdk_%.o) sdk_c_mspti.o sdk_c_old_glibc.o

LIBRARIES := libtaskd.so libnccl-profiler-taskd.so $(if $(PYTHON_INCLUDE),_mstx.abi3.so)
PROGRAMS := smoke $(if $(GTEST),ring_stress_test handle_map_test thread_test record_test stack_dump_test)
all: $(LIBRARIES) $(PROGRAMS)

sdk_%.o: $(SDK)/src/%.cc
	$(CXX) $(CXXFLAGS) $(TLS) -c $< -o $@
sdk_c_%.o: $(SDK)/src/%.c
	$(CC) $(FLAGS) $(TLS) -c $< -o $@
libtaskd.so: $(SDK_OBJECTS)
	$(LINK) -o $@ $^ -Wl,-soname,$@ -Wl,-z,defs -Wl,-z,nodelete -Wl,--version-script=$(SDK)/src/libtaskd.map \
	  $(call old_libraries,libdl.so.2 libpthread.so.0)

libnccl-profiler-taskd.so: $(SDK)/src/nccl_profiler.cc
	$(CXX) $(CXXFLAGS) -c $< -o nccl_profiler.o
	$(LINK) -o $@ nccl_profiler.o -Wl,-z,defs -Wl,-z,nodelete $(call old_libraries,libdl.so.2)

_mstx.abi3.so: $(SDK)/python/ext/_mstx.c
	mkdir -p python/aarch64-linux-gnu
	ln -sfn /usr/include/x86_64-linux-gnu/$(notdir $(PYTHON_INCLUDE)) python/aarch64-linux-gnu/
	$(CC) $(FLAGS) -I $(PYTHON_INCLUDE) -I python -c $< -o _mstx.o
	$(LINK) -o $@ _mstx.o $(call old_libraries,libdl.so.2)

# Programs of today's glibc.
TEST_FLAGS := -O1 -Wall -Wextra -Werror -I $(ROOT) -I $(SDK)/include -I $(SDK)/src
GTEST_FLAGS := -isystem $(GTEST)/include
LIBTASKD := -L . -ltaskd

smoke: $(ROOT)/tests/integration/arm64_smoke.cc $(SDK)/src/testing/segment_view.cc libtaskd.so
	$(CXX) $(TEST_FLAGS) $(filter %.cc,$^) -o $@ $(LIBTASKD)

gtest.o: $(GTEST)/src/gtest-all.cc
	$(CXX) -O1 $(GTEST_FLAGS) -I $(GTEST) -c $< -o $@
gtest_main.o: $(GTEST)/src/gtest_main.cc
	$(CXX) -O1 $(GTEST_FLAGS) -c $< -o $@
testing_%.o: $(SDK)/src/testing/%.cc
	$(CXX) $(TEST_FLAGS) $(GTEST_FLAGS) -c $< -o $@
reader_%.o: $(ROOT)/proxy/%.cc
	$(CXX) $(TEST_FLAGS) -O2 -I $(ROOT)/tests/integration/arm64_absl -c $< -o $@
GTEST_OBJECTS := gtest.o gtest_main.o testing_segment_view.o testing_fresh_process.o
handle_map_test thread_test record_test stack_dump_test: %: $(SDK)/src/%.cc $(GTEST_OBJECTS) libtaskd.so
	$(CXX) $(TEST_FLAGS) $(GTEST_FLAGS) -DTASKD_SDK_PATH='"$(CURDIR)/libtaskd.so"' -c $< -o $@.o
	$(CXX) $@.o $(GTEST_OBJECTS) -o $@ $(LIBTASKD)
ring_stress_test: $(ROOT)/tests/integration/ring_stress_test.cc reader_ring_segment.o reader_sigbus_guard.o \
    reader_tick_clock.o $(GTEST_OBJECTS) libtaskd.so
	$(CXX) $(TEST_FLAGS) $(GTEST_FLAGS) -I $(ROOT)/tests/integration/arm64_absl -c $< -o $@.o
	$(CXX) $@.o $(filter %.o,$^) -o $@ $(LIBTASKD)
