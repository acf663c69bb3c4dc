// `pasa bench` on an emulated device: instruction budgets in place of times.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/counts.h"

namespace pasa {

// What is counted if no problem is named: one row of 16 heads in every format, and of 64 heads.
std::vector<std::string> budget_problems();

nlohmann::ordered_json to_json(const Budget& budget, const std::string& problem, const std::string& device);
// Tables of such rows, with what their columns mean.
void print_budgets(const nlohmann::ordered_json& rows);

}  // namespace pasa
