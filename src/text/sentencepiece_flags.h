// Both libsentencepiece and LibTorch's c10 export a variable named FLAGS_minloglevel, of 32 bytes
// in the one and an int in the other. The dynamic linker takes c10's for both, and so
// libsentencepiece constructs its own over that int and what lies behind it, where c10 keeps
// whether a failed check ends the process: an allocation that fails then does.
#pragma once

namespace kvcache::detail {

// Puts back what c10 had there, if it was written over, which is when the libraries are loaded.
// libsentencepiece reads the same from it: log level 0. Returns whether it was.
bool restore_c10_flags() noexcept;

}  // namespace kvcache::detail
