// The tuning table: what is read, what is refused and with which words, which shapes an entry serves, and that a plan takes
// an entry exactly as if its caller had asked for it.
#include "core/tuning.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/error.h"

namespace pasa {
namespace {

const Backend kFake = {.name = "fake:kernel",
                       .device = PASA_CPU,
                       .unavailable = [] { return std::string(); },
                       .decline = [](const Problem&) { return std::string(); },
                       .plan = [](const Problem&, Plan&) {},
                       .run = [](const Problem&, const Plan&, void*, void*) {},
                       .reduce = nullptr,
                       .machine = [](const Problem&) { return std::string("Box"); }};

Problem problem(int heads, std::int64_t tokens, std::int64_t length, pasa_kv_format format = PASA_KV_FP8_DS_MLA) {
  Problem p;
  p.tokens = tokens;
  p.heads = heads;
  p.source[0].format = format;
  p.sources[0].width = length;
  return p;
}

std::string table_of(const std::string& entries, const std::string& version = pasa_version(),
                     const std::string& machine = "Box") {
  return concat(R"({"pasa": ")", version, R"(", "machines": {")", machine, R"(": [)", entries, "]}}");
}
std::string entry(int heads, int tokens, int length, int block_h, int splits, const std::string& keys = "fp8",
                  const std::string& kernel = "fake:kernel") {
  return concat(R"({"kernel": ")", kernel, R"(", "keys": ")", keys, R"(", "heads": )", heads, R"(, "tokens": )", tokens,
                R"(, "length": )", length, R"(, "block_h": )", block_h, R"(, "splits": )", splits,
                R"(, "gain": 1.25})");
}

struct Taken {
  std::string why;
  int block_h, splits;
};
Taken take(const TuningTable& table, Problem p, const Backend& backend = kFake) {
  std::string why = apply_tuning(table, backend, p);
  return {std::move(why), p.block_h, p.splits};
}
Taken take(const std::string& text, const Problem& p) { return take(parse_tuning("table.json", text), p); }

testing::AssertionResult tuned(const Taken& taken, int block_h, int splits) {
  if (taken.why.starts_with("tuned: ") && taken.block_h == block_h && taken.splits == splits) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << taken.why << ": " << taken.block_h << " x " << taken.splits;
}
testing::AssertionResult untuned(const Taken& taken, const std::string& reason) {
  if (taken.why.starts_with("not tuned: ") && taken.why.find(reason) != std::string::npos && taken.block_h == 0 &&
      taken.splits == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << taken.why << ": " << taken.block_h << " x " << taken.splits;
}

TEST(Tuning, AnEntryServesItsShapeAndALittleLess) {
  const std::string text = table_of(entry(64, 16, 1152, 64, 8));
  EXPECT_TRUE(tuned(take(text, problem(64, 16, 1152)), 64, 8));
  EXPECT_TRUE(tuned(take(text, problem(49, 15, 865)), 64, 8));
  for (const Problem& other :
       {problem(64, 17, 1152), problem(64, 14, 1152), problem(64, 16, 1153), problem(64, 16, 864),
        problem(48, 16, 1152), problem(65, 16, 1152), problem(64, 16, 1152, PASA_KV_BF16), problem(64, 0, 0)}) {
    EXPECT_TRUE(untuned(take(text, other), "nothing"));
  }
}

TEST(Tuning, TheClosestEntryWinsWhateverTheOrder) {
  const std::string near = entry(64, 16, 1000, 64, 8), wide = entry(64, 18, 1000, 16, 4),
                    longer = entry(64, 16, 1100, 16, 2);
  for (const std::string& text : {concat(near, ",", wide, ",", longer), concat(longer, ",", wide, ",", near)}) {
    EXPECT_TRUE(tuned(take(table_of(text), problem(64, 16, 990)), 64, 8));
    EXPECT_TRUE(tuned(take(table_of(text), problem(64, 17, 990)), 16, 4));
    EXPECT_TRUE(tuned(take(table_of(text), problem(64, 16, 1050)), 16, 2));
  }
}

TEST(Tuning, BothSourcesCount) {
  Problem p = problem(64, 16, 128);
  p.source_count = 2;
  p.source[1] = {.format = PASA_KV_FP8_DS_MLA, .ragged = true};
  p.sources[1].nnz = 16 * 1024;
  EXPECT_TRUE(tuned(take(table_of(entry(64, 16, 1152, 0, 8)), p), 0, 8));
  p.source[1].format = PASA_KV_BF16;
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, 0, 8)), p), "mixed"));
  EXPECT_TRUE(tuned(take(table_of(entry(64, 16, 1152, 0, 8, "mixed")), p), 0, 8));
}

TEST(Tuning, KeyClasses) {
  Problem p = problem(64, 16, 128, PASA_KV_F16);
  EXPECT_EQ(key_class(p), "16-bit");
  p.word = Word16::kF16;
  EXPECT_EQ(key_class(p), "16-bit");
  p.source[0].format = PASA_KV_BF16;
  EXPECT_EQ(key_class(p), "16-bit for f16 queries");
  p.source[0].format = PASA_KV_FP8_E4M3FN;
  EXPECT_EQ(key_class(p), "fp8 for f16 queries");
}

TEST(Tuning, WhatTheCallerAsksForStays) {
  const TuningTable table = parse_tuning("table.json", table_of(entry(64, 16, 1152, 64, 8)));
  Problem p = problem(64, 16, 1152);
  p.splits = 3;
  Taken taken = take(table, p);
  EXPECT_EQ(taken.splits, 3);
  EXPECT_EQ(taken.block_h, 0);
  EXPECT_NE(taken.why.find("asked for"), std::string::npos);
  p.splits = 0, p.block_h = 16;
  taken = take(table, p);
  EXPECT_EQ(taken.splits, 0);
  EXPECT_EQ(taken.block_h, 16);
}

TEST(Tuning, OtherKernelsMachinesAndVersions) {
  const Problem p = problem(64, 16, 1152);
  EXPECT_TRUE(
      untuned(take(table_of(entry(64, 16, 1152, 64, 8, "fp8", "other:kernel")), p), "64 heads, 16 rows, 1152 fp8"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, 64, 8), pasa_version(), "Another"), p), "nothing about Box"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, 64, 8), "0.0.9"), p), "made by pasa 0.0.9, this is "));
  Backend fixed = kFake;
  fixed.machine = nullptr;
  EXPECT_EQ(take(parse_tuning("t", table_of(entry(64, 16, 1152, 64, 8))), p, fixed).why, "");
}

TEST(Tuning, UnknownMembersAreSkipped) {
  const std::string text = concat(R"({"made": {"by": ["a", 1.5e3, null, {}], "on": true}, )",
                                  table_of(entry(64, 16, 1152, 64, 8)).substr(1));
  EXPECT_TRUE(tuned(take(text, problem(64, 16, 1152)), 64, 8));
}

TEST(Tuning, DamageIsNamed) {
  const Problem p = problem(64, 16, 1152);
  EXPECT_TRUE(untuned(take("", p), "table.json: "));
  EXPECT_TRUE(untuned(take("[]", p), "table.json: "));
  EXPECT_TRUE(untuned(take("{}", p), "made by pasa ?"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, 64, 8)) + "x", p), "parse error"));
  EXPECT_TRUE(untuned(take(table_of(entry(0, 16, 1152, 64, 8)), p), "a number from 1"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, 64, 257)), p), "a number from 0 to 256"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 16, 1152, -1, 8)), p), "a number from 0"));
  EXPECT_TRUE(untuned(take(table_of(entry(64, 1 << 20, 1152, 64, 128)), p), "rows x 128 splits"));
  EXPECT_TRUE(untuned(take(table_of(R"({"kernel": "fake:kernel"})"), p), "lacks"));
  EXPECT_TRUE(untuned(take(R"({"pasa": )" + std::string(10000, '[') + "}", p), "parse error"));
  EXPECT_TRUE(untuned(take(R"({"deep": )" + std::string(10000, '[') + "}", p), "parse error"));
}

// Cut anywhere or with a byte changed, a table is read or refused; every number that is used is a legal one.
TEST(Tuning, NoDamageIsTaken) {
  const std::string whole = table_of(concat(entry(64, 16, 1152, 64, 8), ", ", entry(16, 1, 192, 0, 4)));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(untuned(take(whole.substr(0, size), problem(64, 16, 1152)), "parse error"));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    text[random() % text.size()] = static_cast<char>(random());
    const Taken taken = take(text, problem(64, 16, 1152));
    ASSERT_TRUE(taken.splits >= 0 && taken.splits <= 256 && taken.block_h >= 0) << text;
  }
}

TEST(Tuning, Files) {
  EXPECT_TRUE(
      untuned(take(load_tuning("/nowhere/tune.json"), problem(64, 16, 1152)), "/nowhere/tune.json: no such file"));
  EXPECT_TRUE(untuned(take(load_tuning(""), problem(64, 16, 1152)), "no table"));
  EXPECT_TRUE(untuned(take(load_tuning("/"), problem(64, 16, 1152)), "/: "));  // a folder
  const std::filesystem::path path = testing::TempDir() + "pasa_tuning_test.json";
  std::ofstream(path) << table_of(entry(64, 16, 1152, 64, 8));
  EXPECT_TRUE(tuned(take(load_tuning(path), problem(64, 16, 1152)), 64, 8));
  std::filesystem::remove(path);
}

// The named file, then the cache folder, then the home's.
TEST(Tuning, WhereTheTableIs) {
  const auto set = [](const char* name, const char* value) { value ? setenv(name, value, 1) : unsetenv(name); };
  const char* home = std::getenv("HOME");
  const std::string kept = home ? home : "";
  set("PASA_TUNE_TABLE", "/some/table"), set("XDG_CACHE_HOME", "/cache"), set("HOME", "/home/me");
  EXPECT_EQ(tuning_path(), "/some/table");
  set("PASA_TUNE_TABLE", "");
  EXPECT_EQ(tuning_path(), "");
  set("PASA_TUNE_TABLE", nullptr);
  EXPECT_EQ(tuning_path(), "/cache/pasa/tune.json");
  set("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(tuning_path(), "/home/me/.cache/pasa/tune.json");
  set("HOME", nullptr);
  EXPECT_EQ(tuning_path(), "");
  if (home) set("HOME", kept.c_str());
}

}  // namespace
}  // namespace pasa
