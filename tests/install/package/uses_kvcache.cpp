// The compiled library: loaded, and its symbols found across the library's edge.
#include <cstdio>
#include <string>

#include "kvcache/core/errors.h"
#include "kvcache/io/safetensors.h"

int main() {
  try {
    kvcache::SafetensorsFile::open("missing.safetensors");
    std::puts("a missing file was opened");
    return 1;
  } catch (const kvcache::ValueError& error) {
    const bool good = std::string(error.what()).find("missing.safetensors") != std::string::npos;
    std::puts(good ? "ok" : error.what());
    return good ? 0 : 1;
  }
}
