#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fnmatch.h>
#include <kvcache/core/errors.h>
#include <kvcache/io/safetensors.h>
#include <kvcache/io/state_dict.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "io/posix_file.h"
#include "io/sharded_checkpoint.h"
#include "kvcache/core/dtype_name.h"

namespace kvcache {
namespace {

using detail::in_quotes;

constexpr std::size_t kListedFaults = 20;  // of each sort, in verify()'s message

struct Misshape {
  std::vector<std::int64_t> found;
  std::vector<std::int64_t> expected;
};

struct Pattern {
  std::string prefix;  // of the view that gave it
  std::string glob;

  bool matches(const std::string& name) const {
    return name.starts_with(prefix) &&
           ::fnmatch(glob.c_str(), name.c_str() + prefix.size(), 0) == 0;
  }
};

// Refuses a device that this program does not see. Throws ValueError.
void check_device(at::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  const bool known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count =
      known ? static_cast<int>(c10::impl::VirtualGuardImpl(device.type()).deviceCount()) : 0;
  check_value(device.index() < count && count > 0, "weights cannot be loaded to ", device,
              ": this program sees ", count, " devices of type ", device.type(),
              count > 0 ? "; name one of them"
                        : "; load to the CPU, or link LibTorch's libraries "
                          "for such devices where there are some");
}

// Whether the weight or part `name` is `prefix` or lies below it.
bool lies_in(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) &&
         (name.size() == prefix.size() || prefix.empty() || name[prefix.size()] == '.');
}

// "  title:" and one line a fault; nothing if there is none.
std::string fault_list(const char* title, const std::vector<std::string>& faults) {
  if (faults.empty()) return "";
  std::string text = c10::str("\n  ", title, ":");
  for (std::size_t i = 0; i < std::min(faults.size(), kListedFaults); ++i) {
    text += c10::str("\n    ", faults[i]);
  }
  if (faults.size() > kListedFaults) {
    text += c10::str("\n    ... and ", faults.size() - kListedFaults, " more");
  }
  return text;
}

}  // namespace

at::Device LoadOptions::device_of(std::string_view name) const {
  const std::pair<const std::string, at::Device>* best = nullptr;
  for (const auto& entry : device_map) {
    const bool longer = best == nullptr || entry.first.size() > best->first.size();
    if (longer && lies_in(name, entry.first)) best = &entry;
  }
  return best != nullptr ? best->second : device;
}

// What all views of one checkpoint share.
struct StateDict::Ledger {
  struct Entry {
    at::Tensor tensor;                            // if it was in memory already
    std::shared_ptr<const SafetensorsFile> file;  // else the file that holds it
    bool used = false;
  };

  std::string origin;  // for messages
  LoadOptions options;
  std::map<std::string, Entry, std::less<>> entries;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> missing;  // expected shapes
  std::map<std::string, Misshape, std::less<>> misshaped;
  std::vector<Pattern> ignored;

  Ledger(std::string origin_, const LoadOptions& options_)
      : origin(std::move(origin_)), options(options_) {
    check_value(!options.dtype || c10::isFloatingType(*options.dtype),
                "weights can be loaded as a floating-point dtype only, not as ",
                detail::dtype_name(options.dtype.value_or(at::kFloat)));
    check_device(options.device);
    for (const auto& [prefix, device] : options.device_map) check_device(device);
  }

  static std::vector<std::int64_t> shape_of(const std::string& name, const Entry& entry) {
    return entry.file ? entry.file->info(name).shape : entry.tensor.sizes().vec();
  }

  at::Tensor load(const std::string& name, const Entry& entry) const {
    const at::Tensor stored = entry.file ? entry.file->tensor(name) : entry.tensor;
    const bool convert = options.dtype && stored.is_floating_point();
    at::Tensor loaded =
        stored.to(options.device_of(name), convert ? *options.dtype : stored.scalar_type());
    if (entry.file && !loaded.is_same(stored)) entry.file->release_pages(name);
    return loaded;
  }

  // Of the shape asked for, without memory of its own.
  at::Tensor placeholder(const std::string& name, at::IntArrayRef shape) const {
    const auto dtype = at::TensorOptions(options.dtype.value_or(at::kFloat));
    return at::zeros({}, dtype.device(options.device_of(name))).expand(shape);
  }

  void check_device_map() const {
    for (const auto& [prefix, device] : options.device_map) {
      const bool known =
          std::any_of(entries.begin(), entries.end(),
                      [&prefix = prefix](auto& entry) { return lies_in(entry.first, prefix); });
      check_value(known, "the device map puts ", in_quotes(prefix), " on ", device, ", but ",
                  origin, " have no weight of that name or below it");
    }
  }
};

StateDict::StateDict(std::shared_ptr<Ledger> ledger, std::string prefix)
    : ledger_(std::move(ledger)), prefix_(std::move(prefix)) {}

StateDict::StateDict(const std::map<std::string, at::Tensor>& weights, const LoadOptions& options)
    : ledger_(std::make_shared<Ledger>("the given weights", options)) {
  for (const auto& [name, tensor] : weights) {
    check_value(tensor.defined(), "weight ", in_quotes(name), " is an undefined tensor");
    ledger_->entries.emplace(name, Ledger::Entry{tensor, nullptr});
  }
  ledger_->check_device_map();
}

StateDict StateDict::from_checkpoint(const std::filesystem::path& folder,
                                     const LoadOptions& options) {
  auto ledger = std::make_shared<Ledger>(in_quotes(folder.native()), options);
  for (const auto& file : detail::open_checkpoint_files(folder)) {
    for (const std::string& name : file->names()) {
      ledger->entries.emplace(name, Ledger::Entry{at::Tensor(), file});
    }
  }
  ledger->check_device_map();
  return StateDict(std::move(ledger), "");
}

StateDict StateDict::select(std::string_view prefix) const {
  return prefix.empty() ? *this : StateDict(ledger_, c10::str(prefix_, prefix, "."));
}

bool StateDict::contains(std::string_view name) const {
  return ledger_->entries.contains(c10::str(prefix_, name));
}

at::Tensor StateDict::take(std::string_view name, at::IntArrayRef shape) const {
  const std::string full_name = c10::str(prefix_, name);
  check_value(std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n >= 0; }),
              "the shape ", shape, " asked of weight ", in_quotes(full_name), " is negative");
  const auto found = ledger_->entries.find(full_name);
  if (found == ledger_->entries.end()) {
    ledger_->missing.emplace(full_name, shape.vec());
    return ledger_->placeholder(full_name, shape);
  }
  found->second.used = true;
  const std::vector<std::int64_t> stored = Ledger::shape_of(full_name, found->second);
  if (shape != at::IntArrayRef(stored)) {
    ledger_->misshaped.emplace(full_name, Misshape{stored, shape.vec()});
    return ledger_->placeholder(full_name, shape);
  }
  return ledger_->load(full_name, found->second);
}

std::map<std::string, std::vector<std::int64_t>> StateDict::shapes() const {
  std::map<std::string, std::vector<std::int64_t>> result;
  for (auto at = ledger_->entries.lower_bound(prefix_); at != ledger_->entries.end(); ++at) {
    const auto& [name, entry] = *at;
    if (!name.starts_with(prefix_)) break;
    result.emplace(name.substr(prefix_.size()), Ledger::shape_of(name, entry));
  }
  return result;
}

void StateDict::ignore_unused(std::string_view pattern) const {
  ledger_->ignored.push_back({prefix_, std::string(pattern)});
}

void StateDict::verify() const {
  std::vector<std::string> missing;
  for (const auto& [name, shape] : ledger_->missing) {
    missing.push_back(c10::str(in_quotes(name), " of shape ", at::IntArrayRef(shape)));
  }
  std::vector<std::string> misshaped;
  for (const auto& [name, shapes] : ledger_->misshaped) {
    misshaped.push_back(c10::str(in_quotes(name), ": stored as ", at::IntArrayRef(shapes.found),
                                 ", the model needs ", at::IntArrayRef(shapes.expected)));
  }
  std::vector<std::string> unused;
  for (const auto& [name, entry] : ledger_->entries) {
    const bool ignored =
        std::any_of(ledger_->ignored.begin(), ledger_->ignored.end(),
                    [&name = name](const Pattern& pattern) { return pattern.matches(name); });
    if (entry.used || ignored) continue;
    const auto shape = Ledger::shape_of(name, entry);
    unused.push_back(c10::str(in_quotes(name), " of shape ", at::IntArrayRef(shape)));
  }
  check_value(missing.empty() && misshaped.empty() && unused.empty(), "the weights of ",
              ledger_->origin, " do not fit the model (missing: ", missing.size(),
              ", of another shape: ", misshaped.size(), ", unused: ", unused.size(),
              "); is its config.json that of another model?", fault_list("missing", missing),
              fault_list("of another shape", misshaped), fault_list("unused", unused));
}

}  // namespace kvcache
