// The core's definitions that programs with the compiled library share: see core/definitions.h.
#define KVCACHE_BUILDS_CORE

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
