// How the command line prints: numbers with units, tables, and how far a long task is.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace pasa {

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// Three significant digits with the unit that suits: 12.3 us, 584 MiB.
inline std::string with_unit(double value, double base, std::initializer_list<const char*> units) {
  const auto* unit = units.begin();
  while (value >= base * 0.9995 && unit + 1 != units.end()) value /= base, ++unit;
  const int decimals = value >= 99.95 || value == 0 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, *unit);
}
inline std::string duration(double seconds) { return with_unit(seconds * 1e9, 1000, {"ns", "us", "ms", "s"}); }
inline std::string bytes_text(double bytes) { return with_unit(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}); }
inline std::string percent(double fraction) {
  return fmt::format("{:.{}f} %", 100 * fraction, fraction < 0.0995 ? 1 : 0);
}

// Columns as wide as their widest cell; all but the first `left` are aligned to the right.
class Table {
 public:
  Table(std::vector<std::string> header, std::size_t left) : left_(left) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print_all() const {
    std::vector<std::size_t> width(rows_[0].size());
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        line += i ? "  " : "";
        line += i < left_ ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("{:>{}}", row[i], width[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      print("{}\n", line);
    }
  }

 private:
  std::size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

// A line on a terminal that tells how far a long task is, and vanishes when it is done.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), shown_(isatty(STDERR_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }
  void operator()(double fraction) {
    const int now = static_cast<int>(100 * fraction);
    if (now >= 100) return clear();
    if (!shown_ || now == last_) return;
    std::fprintf(stderr, "\r%s %d %%", what_.c_str(), last_ = now);
  }

 private:
  void clear() {
    if (last_ >= 0) std::fprintf(stderr, "\r\033[K");
    last_ = -1;
  }

  std::string what_;
  bool shown_;
  int last_ = -1;
};

}  // namespace pasa
