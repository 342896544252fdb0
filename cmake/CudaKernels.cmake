# kvcache::cuda: the operators' kernels for NVIDIA GPUs. They register themselves as the library is
# loaded and nothing refers to them by symbol, so whoever links it is told to keep it.

if(NOT TARGET LibTorch::cuda)
  message(FATAL_ERROR "KVCACHE_CUDA needs LibTorch with CUDA: set LIBTORCH_CUDA_RUNTIME to ON, or KVCACHE_CUDA to OFF")
endif()

# Machine code for compute capability 8.x and 9.0, and PTX for later ones.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
find_program(KVCACHE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH "${CUDAToolkit_BIN_DIR}" PATHS /usr/local/cuda/bin
             PATH_SUFFIXES bin DOC "CUDA's compiler, with which KVCACHE_CUDA is built")
mark_as_advanced(KVCACHE_NVCC)
if(KVCACHE_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${KVCACHE_NVCC}")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # LibTorch's
enable_language(CUDA)

# Device code apart, as the project's warnings and its precompiled header are for C++ alone.
file(GLOB kvcache_cuda_kernels CONFIGURE_DEPENDS src/kernels/cuda/*.cu)
add_library(kvcache_cuda_kernels OBJECT ${kvcache_cuda_kernels})
target_include_directories(kvcache_cuda_kernels PRIVATE src)
set_target_properties(kvcache_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
# The standard as a flag: CMake 3.25 does not know that nvcc 13 has C++20.
target_compile_options(kvcache_cuda_kernels PRIVATE -std=c++20 -Xcompiler=-Wall,-Wextra,-Wshadow
                                                    $<$<BOOL:${KVCACHE_WERROR}>:--Werror=all-warnings>)

file(GLOB kvcache_cuda_sources CONFIGURE_DEPENDS src/kernels/cuda/*.cpp)
add_library(kvcache_cuda ${kvcache_type} ${kvcache_cuda_sources} $<TARGET_OBJECTS:kvcache_cuda_kernels>)
add_library(kvcache::cuda ALIAS kvcache_cuda)
kvcache_configure(kvcache_cuda)
set_target_properties(
  kvcache_cuda PROPERTIES EXPORT_NAME cuda VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} DEFINE_SYMBOL ""
                          INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON LINKER_LANGUAGE CXX)
target_include_directories(kvcache_cuda PRIVATE src)
find_package(CUDAToolkit REQUIRED)
target_link_libraries(kvcache_cuda PUBLIC kvcache LibTorch::cuda PRIVATE "${CUDA_cudart_LIBRARY}")
if(kvcache_type STREQUAL STATIC)
  set(kvcache_keep --whole-archive)
else()
  set(kvcache_keep --no-as-needed)
endif()
target_link_options(kvcache_cuda INTERFACE "LINKER:--push-state,${kvcache_keep},$<TARGET_FILE:kvcache::cuda>,--pop-state")
