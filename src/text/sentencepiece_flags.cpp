#include "text/sentencepiece_flags.h"

#include <c10/util/Flags.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

C10_DECLARE_int(minloglevel);

namespace kvcache::detail {
namespace {

constexpr const char* kLibrary = "libsentencepiece.so.0";

// Bytes of libsentencepiece's variable if it was constructed elsewhere, as its own place is still
// zero; 0 if not.
std::size_t bytes_constructed_elsewhere(void* library) {
  const void* own = dlsym(library, "FLAGS_minloglevel");
  if (own == nullptr || own == &FLAGS_minloglevel) return 0;
  Dl_info info;
  void* symbol = nullptr;
  if (dladdr1(own, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return 0;
  const std::size_t size = static_cast<const ElfW(Sym)*>(symbol)->st_size;
  const auto* bytes = static_cast<const unsigned char*>(own);
  return std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == 0; }) ? size : 0;
}

}  // namespace

bool restore_c10_flags() noexcept {
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const std::size_t size = bytes_constructed_elsewhere(library);
  dlclose(library);
  // More than the int: the compiler is not to know whose address it is.
  volatile auto address = reinterpret_cast<std::uintptr_t>(&FLAGS_minloglevel);
  std::fill_n(reinterpret_cast<unsigned char*>(address), size, 0);
  return size > 0;
}

}  // namespace kvcache::detail
