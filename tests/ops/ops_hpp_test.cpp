// ops.hpp as its users have it.
#include <gtest/gtest.h>
#include <pasa/ops.hpp>

#include <vector>

TEST(OpsHpp, CallsAndThrows) {
  const std::vector<std::int64_t> positions = {5};
  const std::vector<std::int32_t> table = {7, 3};
  std::vector<std::int32_t> list(4, -9), length(1, -9);
  pasa::ListWindow window;
  window.queries.positions = pasa::tensor(positions.data(), PASA_I64, {1});
  window.paging = {.block_table = pasa::tensor(table.data(), PASA_I32, {1, 2}), .block_size = 4};
  window.window = 4;
  window.lists.indices = pasa::tensor(list.data(), PASA_I32, {1, 4});
  window.lists.lengths = pasa::tensor(length.data(), PASA_I32, {1});
  window();
  EXPECT_EQ(list, (std::vector<std::int32_t>{30, 31, 12, 13}));
  EXPECT_EQ(length[0], 4);
  window.window = 0;
  try {
    window();
    FAIL();
  } catch (const pasa::Error& error) {
    EXPECT_EQ(error.status(), PASA_ERROR_RANGE);
    EXPECT_STREQ(error.what(), "range: window is 0, expected 1 to 2147483647");
  }
}
