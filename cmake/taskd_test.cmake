# Sanitizer builds read GoogleTest and the standard library once for all tests. The other builds do not: they find the
# header that a test forgot, and clang-tidy reads their commands.
if(TASKD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(WRITE ${CMAKE_BINARY_DIR}/taskd_test_headers.cc "")
  add_library(taskd_test_headers OBJECT ${CMAKE_BINARY_DIR}/taskd_test_headers.cc)
  target_link_libraries(taskd_test_headers PRIVATE GTest::gmock)
  target_precompile_headers(taskd_test_headers PRIVATE ${CMAKE_CURRENT_LIST_DIR}/taskd_test_headers.h)
  set(TASKD_TEST_HEADERS_OPTIONS -fpch-preprocess -pthread)  # for ccache; and as gRPC wants it
  target_compile_options(taskd_test_headers PRIVATE ${TASKD_TEST_HEADERS_OPTIONS})
endif()

# Where root starts tests an ordinary user runs them: `add_test(NAME foo COMMAND ${TASKD_AS_USER} foo ...)`.
set(TASKD_AS_USER ${CMAKE_SOURCE_DIR}/tests/as_user.sh)

# The label by which tests/affected.py finds the tests of a folder: "in:store".
function(taskd_folder_label SOURCE LABEL)
  cmake_path(ABSOLUTE_PATH SOURCE BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
  cmake_path(RELATIVE_PATH SOURCE BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
  cmake_path(GET SOURCE PARENT_PATH folder)
  set(${LABEL} "in:${folder}" PARENT_SCOPE)
endfunction()

# taskd_test(NAME foo_test SOURCES foo_test.cc LIBS taskd_common [LABELS integration] [ENV A=b ...] [ONE_THREAD] [NO_SANITIZER] [ROOT])
# A GoogleTest program, one ctest entry. A folder has one for all of its tests if it can: twelve sources are compiled as one, in less than
# half the time; taskd_compile_apart() is for those that share a name. Labels: "unit" unless given, and the folders of SOURCES.
# ONE_THREAD: what it tests has no threads, so ThreadSanitizer builds leave it out. NO_SANITIZER: no sanitizer build has it; its label is
# "unsanitized" instead of a folder. ROOT: an ordinary user cannot do all of it; root does it once more, as foo_test_root.
function(taskd_test)
  cmake_parse_arguments(ARG "ONE_THREAD;NO_SANITIZER;ROOT" "NAME" "SOURCES;LIBS;LABELS;ENV" ${ARGN})
  if((ARG_ONE_THREAD AND TASKD_SANITIZE MATCHES "thread") OR (ARG_NO_SANITIZER AND TASKD_SANITIZE))
    return()
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY TASKD_TESTS ${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(TARGET taskd_test_headers AND NOT "${ARG_SOURCES}" MATCHES "[.]c(;|$)")  # CMake would want such a file for C too
    target_precompile_headers(${ARG_NAME} REUSE_FROM taskd_test_headers)
    target_compile_options(${ARG_NAME} PRIVATE ${TASKD_TEST_HEADERS_OPTIONS})
  endif()
  # A test's own code runs once: compiling it is what takes long.
  target_compile_options(${ARG_NAME} PRIVATE $<$<CONFIG:Release>:-O0> $<$<CONFIG:Release>:-U_FORTIFY_SOURCE>)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_NO_SANITIZER)
    list(APPEND ARG_LABELS unsanitized)
  else()
    foreach(source IN LISTS ARG_SOURCES)
      taskd_folder_label(${source} label)
      list(APPEND ARG_LABELS ${label})
    endforeach()
    list(REMOVE_DUPLICATES ARG_LABELS)
  endif()
  # By path: ctest knows a target only where it is the command itself.
  add_test(NAME ${ARG_NAME} COMMAND ${TASKD_AS_USER} $<TARGET_FILE:${ARG_NAME}>)
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 ENVIRONMENT "${ARG_ENV}")
  if(ARG_ROOT)
    add_test(NAME ${ARG_NAME}_root
      COMMAND sh -c "[ $(id -u) -eq 0 ] || { echo this is not root; exit 77; }; exec \"$0\"" $<TARGET_FILE:${ARG_NAME}>)
    set_tests_properties(${ARG_NAME}_root PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 ENVIRONMENT "${ARG_ENV}"
      SKIP_RETURN_CODE 77)
  endif()
endfunction()

# taskd_benchmark(NAME foo_benchmark SOURCES foo_benchmark.cc LIBS taskd_common): built with the rest, run by hand. A sanitizer
# has nothing to measure.
function(taskd_benchmark)
  if(TASKD_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY TASKD_TESTS ${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBS} benchmark::benchmark benchmark::benchmark_main)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# taskd_target_without_tests(NAME): builds what end-to-end tests start, that is all but the programs of taskd_test() and
# taskd_benchmark() and the folders that only they need. Call it when every folder has been added.
function(taskd_target_without_tests NAME)
  get_property(tests GLOBAL PROPERTY TASKD_TESTS)
  set(folders ${CMAKE_SOURCE_DIR})
  set(wanted "")
  while(folders)
    list(POP_FRONT folders folder)
    get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    list(APPEND folders ${below})
    if(folder MATCHES "/tests/(bench|diagnosis|fuzz|integration)$")
      continue()
    endif()
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
      get_target_property(type ${target} TYPE)
      get_target_property(seldom ${target} EXCLUDE_FROM_ALL)
      if(type MATCHES "EXECUTABLE|SHARED|MODULE" AND NOT seldom AND NOT target IN_LIST tests)
        list(APPEND wanted ${target})
      endif()
    endforeach()
  endwhile()
  add_custom_target(${NAME} DEPENDS ${wanted} ${ARGN})
endfunction()
