# How the project's own sources are compiled. Nothing here reaches those who link the library.

# kvcache_settings: warnings, position-independent code (the same for libraries and programs, so that
# they can share one precompiled header) and LibTorch's fmt, header-only, which its include folder
# puts before any other.
add_library(kvcache_settings INTERFACE)
target_compile_features(kvcache_settings INTERFACE cxx_std_20)
target_compile_options(kvcache_settings INTERFACE
                       -fPIC -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                       $<$<BOOL:${KVCACHE_WERROR}>:-Werror>)
target_compile_definitions(kvcache_settings INTERFACE FMT_HEADER_ONLY)

if(KVCACHE_SANITIZE)
  # GCC takes the instrumented moves of an empty std::optional for reads of uninitialized memory.
  target_compile_options(kvcache_settings INTERFACE -fsanitize=${KVCACHE_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all -Wno-maybe-uninitialized)
  target_link_options(kvcache_settings INTERFACE -fsanitize=${KVCACHE_SANITIZE})
endif()

# A faster linker where there is one.
if(KVCACHE_FAST_LINKER)
  find_program(KVCACHE_MOLD mold)
  find_program(KVCACHE_LLD ld.lld)
  mark_as_advanced(KVCACHE_MOLD KVCACHE_LLD)
  if(KVCACHE_MOLD)
    target_link_options(kvcache_settings INTERFACE -fuse-ld=mold)
  elseif(KVCACHE_LLD)
    target_link_options(kvcache_settings INTERFACE -fuse-ld=lld)
  endif()
endif()

# ccache where there is one. It stores nothing made with a precompiled header unless the header's
# preprocessing is told apart (-fpch-preprocess) and these checks are relaxed.
if(KVCACHE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(KVCACHE_CCACHE_PROGRAM ccache)
  mark_as_advanced(KVCACHE_CCACHE_PROGRAM)
  if(KVCACHE_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        ${KVCACHE_CCACHE_PROGRAM})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(kvcache_settings INTERFACE -fpch-preprocess)
    endif()
  endif()
endif()

# One precompiled header for every source and test: most of a file's compile time is ATen's headers.
# Headers stay free of it (all_verify_interface_header_sets compiles each alone).
if(KVCACHE_PCH)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/pch/pch.cpp" CONTENT "")
  add_library(kvcache_pch OBJECT "${CMAKE_CURRENT_BINARY_DIR}/pch/pch.cpp")
  set_target_properties(kvcache_pch PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(kvcache_pch PRIVATE kvcache_settings LibTorch::cpu)
  target_precompile_headers(
    kvcache_pch PRIVATE <ATen/ATen.h> <c10/util/StringUtil.h> <algorithm> <cstdint> <functional>
    <memory> <optional> <span> <string> <string_view> <utility> <vector>)
endif()

# Gives a target of this project the settings above.
function(kvcache_configure target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:kvcache_settings>)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(KVCACHE_PCH)
    target_precompile_headers(${target} REUSE_FROM kvcache_pch)
  endif()
endfunction()
