# What stands in the way of whoever finds a memory error: position-independent programs, a full read-only relocation table
# (nothing is bound lazily), canaries in frames with buffers, checked string and memory functions.
# tests/hostile/test_hardening.py reads it back from the files that are shipped.

add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)

# Debian's compiler makes PIEs by itself, others do not. A library's own -fPIC is the stronger one.
set(shared $<OR:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>,$<STREQUAL:$<TARGET_PROPERTY:TYPE>,MODULE_LIBRARY>>)
add_compile_options($<$<NOT:${shared}>:-fPIE>)
add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)

if(NOT TASKD_SANITIZE)  # it checks more, by functions of its own instead of the checked ones
  add_compile_options(-fstack-protector-strong)
  # Needs an optimised build. A distribution's build may have defined it already.
  add_compile_options($<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE>
                      $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-D_FORTIFY_SOURCE=2>)
endif()
