// The core is header-only, so that it can be used alone. A program that links the compiled library
// (kvcache::kvcache) need not compile all of it in each of its files: there the definitions under
// KVCACHE_CORE_DEFINITIONS, among them one virtual function of each cache, are the library's.
//
//   kvcache::core                         they are in the headers, as KVCACHE_INLINE functions
//   kvcache::kvcache                      they are left out (it defines KVCACHE_COMPILED_CORE)
//   src/cache/definitions.cpp             they are compiled once
#pragma once

#if !defined(KVCACHE_COMPILED_CORE)
#define KVCACHE_CORE_DEFINITIONS 1
#define KVCACHE_INLINE inline
#elif defined(KVCACHE_BUILDS_CORE)
#define KVCACHE_CORE_DEFINITIONS 1
#define KVCACHE_INLINE
#else
#define KVCACHE_CORE_DEFINITIONS 0
#endif
