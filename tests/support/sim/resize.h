// Storages on a device that grow.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace kvcache::testing::sim {

// Gives the storage `bytes` bytes and copies what it held.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace kvcache::testing::sim
