// at::parallel_for(), which is a template that divides work only where it is compiled with OpenMP.
#pragma once

#include <ATen/Parallel.h>  // IWYU pragma: export

#if !defined(_OPENMP) && !defined(__SANITIZE_THREAD__)
#error \
    "compile this file with OpenMP (see CMakeLists.txt): at::parallel_for() uses one thread without"
#endif
