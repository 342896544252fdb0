// The header and tensors of a cache's file, to be changed and written again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvcache/io/safetensors.h"

namespace kvcache::testing {

// What is in a file of a cache.
struct FileContent {
  using Tensors = std::map<std::string, at::Tensor>;

  static FileContent read(const std::filesystem::path& path) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    FileContent content{nlohmann::json::parse(file.metadata().at("kvcache.cache")), {}};
    for (const std::string& name : file.names()) content.tensors[name] = file.tensor(name).clone();
    return content;
  }

  // Unlike save_safetensors() without waiting for the disk.
  void write(const std::filesystem::path& path) const {
    nlohmann::json index;
    index["__metadata__"]["kvcache.cache"] = header.dump();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor whole = tensor.contiguous();
      const std::size_t begin = data.size();
      data.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
      index[name] = {{"dtype", dtype_name(tensor.scalar_type())},
                     {"shape", tensor.sizes().vec()},
                     {"data_offsets", {begin, data.size()}}};
    }
    std::string text = index.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::uint64_t length = text.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    std::filesystem::remove(path);  // what is mapped of it stays as it is
    std::ofstream(path, std::ios::binary) << bytes << text << data;
  }

  // Makes the header say which tensors there are of which form, as one that was never changed does.
  void say_forms() {
    if (header.contains("layers")) return say_forms(header, "");
    for (const std::string side : {"self_attention_cache", "cross_attention_cache"}) {
      say_forms(header[side], side + ".");
    }
  }

  nlohmann::json header;
  Tensors tensors;

 private:
  static const char* dtype_name(at::ScalarType type) {
    switch (type) {
      case at::kBool:
        return "BOOL";
      case at::kByte:
        return "U8";
      case at::kInt:
        return "I32";
      case at::kLong:
        return "I64";
      case at::kHalf:
        return "F16";
      case at::kBFloat16:
        return "BF16";
      case at::kFloat:
        return "F32";
      default:
        throw std::invalid_argument(c10::toString(type));
    }
  }

  void say_forms(nlohmann::json& cache, const std::string& prefix) const {
    for (std::size_t i = 0; i < cache["layers"].size(); ++i) {
      const std::string start = c10::str(prefix, "layers.", i, ".");
      nlohmann::json forms = nlohmann::json::object();
      for (auto at = tensors.lower_bound(start); at != tensors.end(); ++at) {
        if (!at->first.starts_with(start)) break;
        forms[at->first.substr(start.size())] =
            c10::str(c10::toString(at->second.scalar_type()), " ", at->second.sizes());
      }
      cache["layers"][i]["tensors"] = std::move(forms);
    }
  }
};

}  // namespace kvcache::testing
