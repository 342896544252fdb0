# Finds LibTorch 2.11, or fetches it from PyPI, without PyTorch's own TorchConfig (which wants a CUDA
# toolkit) and without importing Python's torch. Defines
#
#   LibTorch::cpu     headers, libtorch_cpu and libc10
#   LibTorch::cuda    the same and libtorch_cuda; only where CUDA is wanted and its libraries load
#   LIBTORCH_PREFIX, LIBTORCH_VERSION, LIBTORCH_HAS_CUDA
#
# Looked at, in this order: LIBTORCH_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, the copy that an installed
# kvcache was built with (LIBTORCH_HINT), Python's torch, PyPI's wheel (kept in LIBTORCH_CACHE_DIR, so
# it is downloaded once for all build trees).

include_guard(GLOBAL)

set(LIBTORCH_ROOT "" CACHE PATH "Folder with LibTorch's include/ and lib/; empty: search for it")
set(LIBTORCH_CUDA_RUNTIME AUTO CACHE STRING
    "CUDA libraries of LibTorch: ON (needed), OFF, AUTO (where an NVIDIA driver is found)")
set_property(CACHE LIBTORCH_CUDA_RUNTIME PROPERTY STRINGS AUTO ON OFF)
option(LIBTORCH_FETCH "Fetch LibTorch from PyPI when no fitting copy is found" ON)
option(KVCACHE_ALLOW_OTHER_LIBTORCH "Accept a LibTorch of another version than 2.11" OFF)
find_program(LIBTORCH_PYTHON NAMES python3 python DOC "Python whose torch is looked at, and whose pip fetches")

if(NOT LIBTORCH_CACHE_DIR)
  if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(_libtorch_cache "$ENV{XDG_CACHE_HOME}/kvcache")
  else()
    set(_libtorch_cache "$ENV{HOME}/.cache/kvcache")
  endif()
  set(LIBTORCH_CACHE_DIR "${_libtorch_cache}" CACHE PATH "Where a fetched LibTorch is kept" FORCE)
endif()

set(_libtorch_wanted_series 2.11)
set(_libtorch_wheel torch==2.11.0)
# The versions that torch 2.11.0 names as its requirements.
set(_libtorch_nvidia_wheels
    "nvidia-cuda-runtime==13.0.96: libcudart.so.13"
    "nvidia-cuda-cupti==13.0.85: libcupti.so.13"
    "nvidia-cuda-nvrtc==13.0.88: libnvrtc.so.13"
    "nvidia-cublas==13.1.0.3: libcublas.so.13 libcublasLt.so.13"
    "nvidia-cufft==12.0.0.61: libcufft.so.12"
    "nvidia-curand==10.4.0.35: libcurand.so.10"
    "nvidia-cusolver==12.0.4.66: libcusolver.so.12"
    "nvidia-cusparse==12.6.3.3: libcusparse.so.12"
    "nvidia-nvjitlink==13.0.88: libnvJitLink.so.13"
    "nvidia-cufile==1.15.1.6: libcufile.so.0"
    "nvidia-cudnn-cu13==9.19.0.56: libcudnn.so.9"
    "nvidia-cusparselt-cu13==0.8.0: libcusparseLt.so.0"
    "nvidia-nccl-cu13==2.28.9: libnccl.so.2"
    "nvidia-nvshmem-cu13==3.4.5: libnvshmem_host.so.3")
# Headers that cuda_runtime.h includes; torch does not name them, as it needs no headers.
set(_libtorch_cuda_header_wheels nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88)

# The version of the LibTorch under `prefix`, or an empty string where there is none.
function(_libtorch_read_version prefix result)
  set(version "")
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(version STREQUAL "" AND EXISTS "${prefix}/include/${header}")
      file(STRINGS "${prefix}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers "." version)
    endif()
  endforeach()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The shared libraries, by soname, that the loader does not find for `libraries` (under prefix/lib).
# libcuda.so.1 is the driver's and comes with no package.
function(_libtorch_unresolved prefix libraries result)
  set(missing "")
  foreach(library IN LISTS libraries)
    if(NOT EXISTS "${prefix}/lib/${library}")
      list(APPEND missing "${library}")
      continue()
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ldd "${prefix}/lib/${library}"
                    OUTPUT_VARIABLE text ERROR_VARIABLE error_text RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      list(APPEND missing "${library}")
    endif()
    string(REGEX MATCHALL "[^ \t\n]+ => not found" lines "${text}")
    list(TRANSFORM lines REPLACE " => not found" "")
    list(APPEND missing ${lines})
  endforeach()
  list(REMOVE_DUPLICATES missing)
  list(REMOVE_ITEM missing libcuda.so.1)
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

set(_libtorch_cpu_libraries libtorch_cpu.so)
set(_libtorch_cuda_libraries libtorch_cuda.so libtorch_cuda_linalg.so libcaffe2_nvrtc.so)

# Sets LIBTORCH_PREFIX in the caller's scope if the copy under `prefix` may be used.
function(_libtorch_consider prefix origin)
  _libtorch_read_version("${prefix}" version)
  if(version STREQUAL "")
    return()
  endif()
  if(NOT version MATCHES "^${_libtorch_wanted_series}(\\.|$)" AND NOT KVCACHE_ALLOW_OTHER_LIBTORCH)
    message(STATUS "LibTorch ${version} (${origin}: ${prefix}) passed over: kvcache is built for "
                   "${_libtorch_wanted_series}; -DKVCACHE_ALLOW_OTHER_LIBTORCH=ON takes it anyway")
    return()
  endif()
  set(libraries ${_libtorch_cpu_libraries})
  if(LIBTORCH_CUDA_RUNTIME STREQUAL "ON")
    list(APPEND libraries ${_libtorch_cuda_libraries})
  endif()
  _libtorch_unresolved("${prefix}" "${libraries}" missing)
  if(missing)
    list(JOIN missing ", " missing)
    message(STATUS "LibTorch ${version} (${origin}: ${prefix}) passed over: not found: ${missing}")
    return()
  endif()
  set(LIBTORCH_PREFIX "${prefix}" PARENT_SCOPE)
  set(LIBTORCH_ORIGIN "${origin}" PARENT_SCOPE)
endfunction()

# A command line for pip, from Python itself or else from a virtual environment in the cache.
function(_libtorch_find_pip result)
  foreach(python IN ITEMS "${LIBTORCH_PYTHON}" /usr/bin/python3)
    execute_process(COMMAND "${python}" -m pip --version RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(${result} "${python}" -m pip PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(venv "${LIBTORCH_CACHE_DIR}/pip")
  execute_process(COMMAND "${LIBTORCH_PYTHON}" -m venv --clear "${venv}" RESULT_VARIABLE status OUTPUT_QUIET)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "LibTorch must be fetched, but there is no pip and no venv module. "
                        "Install python3-pip or python3-venv, or set LIBTORCH_ROOT.")
  endif()
  set(${result} "${venv}/bin/python" -m pip PARENT_SCOPE)
endfunction()

# Downloads the wheels and unpacks them into `folder`.
function(_libtorch_unpack_wheels folder)
  _libtorch_find_pip(pip)
  set(downloads "${folder}/wheels")
  list(JOIN ARGN " " names)
  message(STATUS "Fetching ${names}")
  execute_process(
    COMMAND ${pip} download --quiet --disable-pip-version-check --no-deps --only-binary=:all:
            --implementation cp --python-version 3.12 --dest "${downloads}" ${ARGN}
    RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "pip could not download ${names}. Point LIBTORCH_ROOT at a LibTorch "
                        "${_libtorch_wanted_series} that is already here, or try again.")
  endif()
  file(GLOB wheels "${downloads}/*.whl")
  foreach(wheel IN LISTS wheels)
    file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${folder}")
  endforeach()
  file(REMOVE_RECURSE "${downloads}")
endfunction()

# Fetches the wheels of the NVIDIA libraries that `libraries` lack; a wheel's library may need more.
function(_libtorch_add_nvidia_wheels folder libraries)
  foreach(round RANGE 1 4)
    _libtorch_unresolved("${folder}/torch" "${libraries}" missing)
    set(wheels "")
    foreach(row IN LISTS _libtorch_nvidia_wheels)
      string(REGEX MATCH "^([^:]+): (.+)$" matched "${row}")
      set(wheel "${CMAKE_MATCH_1}")
      string(REPLACE " " ";" sonames "${CMAKE_MATCH_2}")
      foreach(soname IN LISTS sonames)
        if(soname IN_LIST missing)
          list(APPEND wheels "${wheel}")
        endif()
      endforeach()
    endforeach()
    if(NOT wheels)
      break()
    endif()
    list(REMOVE_DUPLICATES wheels)
    _libtorch_unpack_wheels("${folder}" ${wheels})
  endforeach()
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "The fetched LibTorch lacks ${missing}, and no package is known to bring them.")
  endif()
endfunction()

# Sets `result` to a fetched copy, CPU only or with CUDA's libraries, making it if need be. The copy
# is put together beside its place and renamed, so a folder that is there is whole.
function(_libtorch_fetch with_cuda result)
  set(plain "${LIBTORCH_CACHE_DIR}/libtorch-2.11.0-cpu")
  set(final "${plain}")
  set(libraries ${_libtorch_cpu_libraries})
  if(with_cuda)
    set(final "${LIBTORCH_CACHE_DIR}/libtorch-2.11.0-cuda")
    list(APPEND libraries ${_libtorch_cuda_libraries})
  endif()
  set(${result} "${final}/torch" PARENT_SCOPE)

  file(MAKE_DIRECTORY "${LIBTORCH_CACHE_DIR}")
  file(LOCK "${LIBTORCH_CACHE_DIR}/libtorch.lock" GUARD FUNCTION TIMEOUT 3600)
  if(EXISTS "${final}")
    _libtorch_unresolved("${final}/torch" "${libraries}" missing)
    if(NOT missing)
      return()
    endif()
  endif()

  set(partial "${LIBTORCH_CACHE_DIR}/libtorch.partial")
  file(REMOVE_RECURSE "${partial}")
  set(torch_is_here FALSE)
  foreach(copy IN ITEMS "${final}" "${plain}")
    if(NOT torch_is_here AND EXISTS "${copy}")
      execute_process(COMMAND cp -al "${copy}" "${partial}" COMMAND_ERROR_IS_FATAL ANY)
      set(torch_is_here TRUE)
    endif()
  endforeach()
  if(NOT torch_is_here)
    message(STATUS "No LibTorch ${_libtorch_wanted_series} found; it comes from PyPI (about 530 MB, once)")
    file(MAKE_DIRECTORY "${partial}")
    _libtorch_unpack_wheels("${partial}" ${_libtorch_wheel})
  endif()
  if(with_cuda AND NOT CUDAToolkit_FOUND AND NOT EXISTS "${partial}/nvidia/cu13/include/crt")
    _libtorch_unpack_wheels("${partial}" ${_libtorch_cuda_header_wheels})
  endif()
  _libtorch_add_nvidia_wheels("${partial}" "${libraries}")
  file(REMOVE_RECURSE "${final}")
  file(RENAME "${partial}" "${final}")
endfunction()

# --- Where it is ------------------------------------------------------------------------------

function(_libtorch_search)
  set(LIBTORCH_PREFIX "")
  if(LIBTORCH_ROOT)
    _libtorch_read_version("${LIBTORCH_ROOT}" version)
    if(version STREQUAL "")
      message(FATAL_ERROR "LIBTORCH_ROOT=${LIBTORCH_ROOT} is no LibTorch: it has no "
                          "include/torch/headeronly/version.h. Name the folder above include/ and lib/.")
    endif()
    _libtorch_consider("${LIBTORCH_ROOT}" LIBTORCH_ROOT)
  endif()
  if(NOT LIBTORCH_PREFIX AND Torch_DIR)
    get_filename_component(prefix "${Torch_DIR}/../../.." ABSOLUTE)  # <prefix>/share/cmake/Torch
    _libtorch_consider("${prefix}" Torch_DIR)
  endif()
  set(paths ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND paths ${from_environment})
  endif()
  foreach(path IN LISTS paths)
    if(NOT LIBTORCH_PREFIX)
      _libtorch_consider("${path}" CMAKE_PREFIX_PATH)
    endif()
    if(NOT LIBTORCH_PREFIX AND path MATCHES "/share/cmake/?$")
      get_filename_component(path "${path}/../.." ABSOLUTE)
      _libtorch_consider("${path}" CMAKE_PREFIX_PATH)
    endif()
  endforeach()
  if(NOT LIBTORCH_PREFIX AND LIBTORCH_HINT)
    _libtorch_consider("${LIBTORCH_HINT}" "as built with")
  endif()
  if(NOT LIBTORCH_PREFIX AND LIBTORCH_PYTHON)
    execute_process(
      COMMAND "${LIBTORCH_PYTHON}" -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(folder)
      _libtorch_consider("${folder}" "Python's torch")
    endif()
  endif()
  set(LIBTORCH_PREFIX "${LIBTORCH_PREFIX}" PARENT_SCOPE)
  set(LIBTORCH_ORIGIN "${LIBTORCH_ORIGIN}" PARENT_SCOPE)
endfunction()

function(_libtorch_define_targets)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH_PREFIX}/lib/libc10.so"
                                                 INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_PREFIX}/include")
  add_library(LibTorch::cpu SHARED IMPORTED GLOBAL)
  # The libraries name their own CUDA libraries by RPATH; the linker need not follow them.
  set_target_properties(LibTorch::cpu PROPERTIES IMPORTED_LOCATION "${LIBTORCH_PREFIX}/lib/libtorch_cpu.so"
                                                 INTERFACE_LINK_LIBRARIES LibTorch::c10
                                                 INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
  if(NOT LIBTORCH_HAS_CUDA)
    return()
  endif()
  set(cuda_include "")
  foreach(folder IN ITEMS "${LIBTORCH_PREFIX}/../nvidia/cu13/include" ${CUDAToolkit_INCLUDE_DIRS})
    if(EXISTS "${folder}/crt/host_config.h" AND NOT cuda_include)
      cmake_path(SET cuda_include NORMALIZE "${folder}")
    endif()
  endforeach()
  add_library(LibTorch::c10_cuda SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10_cuda PROPERTIES IMPORTED_LOCATION "${LIBTORCH_PREFIX}/lib/libc10_cuda.so"
                                                      INTERFACE_INCLUDE_DIRECTORIES "${cuda_include}"
                                                      INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # Nothing refers to libtorch_cuda by symbol: it registers its kernels as it is loaded.
  set(cuda_library "${LIBTORCH_PREFIX}/lib/libtorch_cuda.so")
  add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu LibTorch::c10_cuda)
  target_link_options(LibTorch::cuda INTERFACE
                      "LINKER:--push-state,--no-as-needed,${cuda_library},--pop-state")
endfunction()

if(NOT TARGET LibTorch::cpu)
  set(_libtorch_wants_cuda FALSE)
  if(LIBTORCH_CUDA_RUNTIME STREQUAL "AUTO")
    find_library(LIBTORCH_CUDA_DRIVER NAMES libcuda.so.1 PATHS /usr/lib/wsl/lib DOC "NVIDIA's driver library")
    mark_as_advanced(LIBTORCH_CUDA_DRIVER)
    if(LIBTORCH_CUDA_DRIVER)
      set(_libtorch_wants_cuda TRUE)
    endif()
  elseif(LIBTORCH_CUDA_RUNTIME)
    set(LIBTORCH_CUDA_RUNTIME ON)
    set(_libtorch_wants_cuda TRUE)
  endif()
  if(_libtorch_wants_cuda)
    find_package(CUDAToolkit QUIET)
  endif()

  _libtorch_search()
  if(NOT LIBTORCH_PREFIX)
    if(NOT LIBTORCH_FETCH)
      message(FATAL_ERROR "No LibTorch ${_libtorch_wanted_series} found, and LIBTORCH_FETCH is off. "
                          "Set LIBTORCH_ROOT to the folder that holds its include/ and lib/.")
    endif()
    _libtorch_fetch(${_libtorch_wants_cuda} LIBTORCH_PREFIX)
    set(LIBTORCH_ORIGIN "PyPI's wheel")
  endif()
  _libtorch_read_version("${LIBTORCH_PREFIX}" LIBTORCH_VERSION)

  set(LIBTORCH_HAS_CUDA FALSE)
  if(_libtorch_wants_cuda)
    _libtorch_unresolved("${LIBTORCH_PREFIX}" "${_libtorch_cuda_libraries}" _libtorch_missing)
    if(NOT _libtorch_missing)
      set(LIBTORCH_HAS_CUDA TRUE)
    else()
      list(JOIN _libtorch_missing ", " _libtorch_missing)
      message(STATUS "LibTorch is used without CUDA (not found: ${_libtorch_missing}); "
                     "-DLIBTORCH_CUDA_RUNTIME=ON fetches a copy with it")
    endif()
  endif()
  _libtorch_define_targets()
  set(_libtorch_cuda_state "programs run on the CPU only")
  if(LIBTORCH_HAS_CUDA)
    set(_libtorch_cuda_state "programs link CUDA")
  elseif(LIBTORCH_CUDA_RUNTIME STREQUAL "AUTO" AND NOT _libtorch_wants_cuda)
    string(APPEND _libtorch_cuda_state " (no NVIDIA driver found)")
  endif()
  message(STATUS "LibTorch ${LIBTORCH_VERSION} (${LIBTORCH_ORIGIN}: ${LIBTORCH_PREFIX}); ${_libtorch_cuda_state}")
endif()
