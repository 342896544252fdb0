// Every processor on random scores and texts in three dtypes, against the oracle's scores.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/io/safetensors.h"
#include "tests/support/processors.h"

namespace kvcache::testing {
namespace {

TEST(ProcessorDtypes, ScoresAreTheOraclesSummedInFloat32) {
  const nlohmann::json file = parity_golden("processor_dtypes");
  const auto tensors =
      SafetensorsFile::open(KVCACHE_TEST_DATA_DIR "/parity/goldens/processor_dtypes.safetensors");
  const at::Tensor ids = tensors.tensor("input_ids");
  ASSERT_GT(file.at("cases").size(), 25U);
  for (const auto& item : file.at("cases")) {
    const std::string name = item.at("name");
    const TokenRows text{ids.narrow(1, 0, item.value("length", ids.size(1)))};
    for (const std::string dtype : {"float32", "bfloat16", "float16"}) {
      const at::Tensor scores = tensors.tensor("scores." + dtype);
      const auto processor =
          make_processor({item.at("processor"), item.at("arguments"), scores.size(1),
                          TokenRows{tensors.tensor("encoder_input_ids")}});
      const at::Tensor expected = tensors.tensor(name + "." + dtype);
      const at::Tensor got = processor->process(text, scores);
      ASSERT_EQ(got.scalar_type(), expected.scalar_type()) << name;
      // One unit in the last place: some formulas round once more in a narrow dtype.
      const double relative = dtype == "float32" ? 1e-6 : dtype == "bfloat16" ? 0x1p-7 : 0x1p-10;
      EXPECT_TRUE(got.isfinite().equal(expected.isfinite())) << name << " " << dtype;
      EXPECT_TRUE(at::allclose(got, expected, relative, 1e-6)) << name << " " << dtype;
    }
  }
}

}  // namespace
}  // namespace kvcache::testing
