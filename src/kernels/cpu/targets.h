// What Highway compiles kernels for: vectors of a size that is known when they are compiled. Comes
// before Highway's own headers.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
