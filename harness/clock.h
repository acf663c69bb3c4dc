// How a time is measured: calls before the clock starts, repetitions, and what is told of them. The median is robust against
// other tenants of the machine; the spread (interquartile range over median) tells how far to trust it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <string>
#include <vector>

namespace pasa {

struct Timing {
  int warmup = 3;
  int reps = 0;  // 0: as many as fit in `seconds`, 5 to 1000
  double seconds = 0.5;
  bool cold = false;  // evict the caches before each call
};

struct Samples {
  std::vector<double> seconds;  // sorted
  double quantile(double q) const {
    if (seconds.empty()) return 0;
    return seconds[static_cast<std::size_t>(std::lround(q * static_cast<double>(seconds.size() - 1)))];
  }
  double median() const { return quantile(0.5); }
  double best() const { return quantile(0); }
  double spread() const { return median() > 0 ? (quantile(0.75) - quantile(0.25)) / median() : 0; }
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// The date and time of a result, as strftime formats it.
inline std::string utc_now(const char* format) {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, format, &utc);
  return text;
}

// once() does one call and returns its seconds; evict() is called before each if the caches are to be cold.
template <typename Once, typename Evict>
Samples measure(const Timing& timing, Once&& once, Evict&& evict) {
  Samples samples;
  double last = 0;
  for (int i = 0; i < timing.warmup; ++i) last = once();
  if (timing.warmup == 0 && timing.reps == 0) last = once();
  const double fit = last > 0 ? timing.seconds / last : 1000;
  const int reps = timing.reps > 0 ? timing.reps : static_cast<int>(std::clamp(fit, 5.0, 1000.0));
  for (int i = 0; i < reps; ++i) {
    if (timing.cold) evict();
    samples.seconds.push_back(once());
  }
  std::sort(samples.seconds.begin(), samples.seconds.end());
  return samples;
}

}  // namespace pasa
