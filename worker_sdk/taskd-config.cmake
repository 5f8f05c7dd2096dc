# find_package(taskd) gives taskd::taskd, libtaskd.so with its header taskd/taskd.h.
if(NOT TARGET taskd::taskd)
  get_filename_component(_taskd_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(taskd::taskd SHARED IMPORTED)
  set_target_properties(taskd::taskd PROPERTIES
    IMPORTED_LOCATION "${_taskd_prefix}/lib/libtaskd.so"
    IMPORTED_SONAME libtaskd.so
    INTERFACE_INCLUDE_DIRECTORIES "${_taskd_prefix}/include")
  unset(_taskd_prefix)
endif()
