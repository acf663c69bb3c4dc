#include "tools/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/backend.h"
#include "core/error.h"
#include "core/format.h"
#include "core/tuning.h"
#include "harness/cases.h"
#include "harness/data.h"
#include "tools/terminal.h"

namespace pasa {
namespace {

constexpr double kLeastGain = 1.03;  // below it a choice is not worth an entry

// What can be chosen; 0: the planner's.
struct Choice {
  int block_h = 0, splits = 0;
};

struct Trial {
  Choice choice;
  double seconds = 0;
};

struct Outcome {
  Tuned shape;
  std::string plan;  // the planner's own
  double planned = 0, best = 0;
  Choice choice;  // what won
  std::vector<Trial> trials;
  bool won() const { return planned > kLeastGain * best; }
};

// The first kernel of the device that takes such choices, or the one asked for.
const Backend& tunable(const Options& options, const Device& device) {
  const std::string wanted = options.kernels.empty() ? "" : options.kernels[0];
  std::string reasons;
  for (std::size_t i = 0; i < backend_count(); ++i) {
    const Backend& backend = backend_at(i);
    if (backend.device != device.type() || (!wanted.empty() && backend.name != wanted)) continue;
    std::string reason = backend.unavailable();
    if (reason.empty() && backend.machine == nullptr) reason = "it has no launch choices that a table could make";
    if (reason.empty()) return backend;
    reasons += concat(reasons.empty() ? "" : "; ", backend.name, ": ", reason);
  }
  throw Error(PASA_ERROR_UNSUPPORTED, concat("nothing to tune on ", device.name(), ": ",
                                             reasons.empty() ? concat("no kernel ", wanted) : reasons));
}

class Tuner {
 public:
  Tuner(Device& device, const Backend& backend, const Timing& timing)
      : device_(device), backend_(backend), kernel_(backend.name), timing_(timing) {}

  const std::string& machine() const { return machine_; }

  Outcome tune(pasa_problem problem) {
    problem.kernel = kernel_.c_str();
    problem.kv_splits = problem.block_h = 0;
    const Problem checked = pasa::check(problem, Stage::kPlan);
    machine_ = backend_.machine(checked);
    Outcome outcome{.shape = {.kernel = kernel_, .keys = key_class(checked), .heads = checked.heads}};
    outcome.shape.tokens = checked.tokens;
    outcome.shape.length = checked.average_keys();
    outcome.planned = outcome.best = time(problem, {}, 1, &outcome.plan);

    const bool has_tiles = device_.type() != PASA_CPU && checked.heads > 16;
    for (const int block_h : has_tiles ? std::vector{16, 64} : std::vector{0}) {
      double least = 0;
      int worse = 0;
      for (const int splits : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64}) {
        if (splits > std::max<std::int64_t>(1, outcome.shape.length / 16) || worse == 2) break;
        const Choice choice{block_h, splits};
        std::string plan;
        double seconds = time(problem, choice, 1, &plan);
        outcome.trials.push_back({choice, seconds});
        if (plan == outcome.plan) seconds = std::max(seconds, outcome.best);  // the planner's own: nothing to win
        worse = least > 0 && seconds > 1.2 * least ? worse + 1 : 0;           // more parts have begun to cost
        if (least == 0 || seconds < least) least = seconds;
        if (seconds < outcome.best) outcome.best = seconds, outcome.choice = choice;
      }
    }
    if (outcome.won()) {  // by chance? Both once more, and longer
      outcome.planned = time(problem, {}, 3);
      outcome.best = time(problem, outcome.choice, 3);
    }
    return outcome;
  }

 private:
  double time(pasa_problem& problem, Choice choice, int times, std::string* plan = nullptr) {
    problem.block_h = choice.block_h;
    problem.kv_splits = choice.splits;
    Runner runner(problem, device_);
    if (plan) *plan = runner.summary().substr(0, runner.summary().find(';'));  // without a word on tables
    Timing timing = timing_;
    timing.reps *= times;
    return device_.time([&] { runner.run(); }, timing).median();
  }

  Device& device_;
  const Backend& backend_;
  std::string kernel_, machine_;
  Timing timing_;
};

// The first `heads` and `tokens` of a problem, and of its rows' lists the first entries.
pasa_problem narrowed(pasa_problem p, int heads, std::int64_t tokens, std::int64_t extra) {
  for (pasa_tensor* tensor : {&p.q, &p.out, &p.lse}) tensor->shape[0] = tokens, tensor->shape[1] = heads;
  p.attn_sink.shape[0] = heads;
  p.main.indices.shape[0] = p.extra.indices.shape[0] = tokens;
  p.extra.indices.shape[1] = extra;
  return p;
}

// The shapes of serving: a window of 128 and a top-k list, in the two kinds of pools.
std::vector<Outcome> tune_grid(Tuner& tuner, Device& device, int threads) {
  const bool is_cpu = device.type() == PASA_CPU;
  const std::vector<std::int64_t> rows =
      is_cpu ? std::vector<std::int64_t>{1, 2, 4, 8} : std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256};
  const std::vector<int> heads = is_cpu ? std::vector{16, 128} : std::vector{16, 32, 64, 128};
  const std::vector<std::int64_t> lists = {64, 256, 512, 1024, 1920};
  std::vector<Outcome> outcomes;
  Progress progress("tune");
  const double count = 2.0 * static_cast<double>(rows.size() * heads.size() * lists.size());
  for (const char* format : {"fp8_ds_mla", "bf16"}) {
    Case c = make_case(find_problem(concat("decode:T=", rows.back(), ",H=", heads.back(), ",fmt=", format, ",len=128+",
                                           lists.back(), ",slots=32768+65536,lists=rect,poison=none")));
    c.problem.threads = threads;
    Placed placed(c, device);
    for (const int h : heads) {
      for (const std::int64_t keys : lists) {
        for (const std::int64_t t : rows) {
          outcomes.push_back(tuner.tune(narrowed(placed.problem(), h, t, keys)));
          progress(static_cast<double>(outcomes.size()) / count);
        }
      }
    }
  }
  return outcomes;
}

std::vector<Outcome> tune_problems(Tuner& tuner, Device& device, const Options& options) {
  std::vector<Outcome> outcomes;
  Progress progress("tune");
  for (const std::string& text : options.problems) {
    Case c = load(text, options);
    prepare_partials(c, device);
    Placed placed(c, device);
    outcomes.push_back(tuner.tune(placed.problem()));
    progress(static_cast<double>(outcomes.size()) / static_cast<double>(options.problems.size()));
  }
  return outcomes;
}

// Before the work begins, so that an unwritable place is no loss of it.
void require_writable(const std::string& path) {
  const std::filesystem::path file(path), part(path + ".part");
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  require(PASA_ERROR_VALUE, std::ofstream(part).good(), "cannot write ", part.string());
  std::filesystem::remove(part);
  const TuningTable old = load_tuning(path);
  if (std::filesystem::exists(file) && !old.fault.empty()) {
    std::fprintf(stderr, "pasa: note: the file will be replaced: %s\n", old.fault.c_str());
  }
}

// The file with what won now; its other entries stay, unless no plan could read them.
void write_table(const std::string& path, const std::string& machine, const std::vector<Outcome>& outcomes) {
  Json json{{"pasa", pasa_version()}, {"machines", Json::object()}};
  if (load_tuning(path).fault.empty()) json = Json::parse(std::ifstream(path));
  const auto same_shape = [](const Json& entry, const Tuned& shape) {
    return entry["kernel"] == shape.kernel && entry.value("keys", "") == shape.keys && entry["heads"] == shape.heads &&
           entry["tokens"] == shape.tokens && entry["length"] == shape.length;
  };
  Json kept = Json::array();
  for (const Json& entry : json["machines"].value(machine, Json::array())) {
    if (std::ranges::none_of(outcomes, [&](const Outcome& o) { return same_shape(entry, o.shape); })) {
      kept.push_back(entry);
    }
  }
  for (const Outcome& o : outcomes) {
    if (!o.won()) continue;
    kept.push_back({{"kernel", o.shape.kernel},
                    {"keys", o.shape.keys},
                    {"heads", o.shape.heads},
                    {"tokens", o.shape.tokens},
                    {"length", o.shape.length},
                    {"block_h", o.choice.block_h},
                    {"splits", o.choice.splits},
                    {"gain", std::round(1000 * o.planned / o.best) / 1000}});
  }
  json["machines"][machine] = kept;
  const std::string part = path + ".part";  // plans may be reading the old one
  std::ofstream out(part);
  out << json.dump(1) << '\n';
  out.close();
  require(PASA_ERROR_VALUE, out.good(), "cannot write ", part);
  std::filesystem::rename(part, path);
}

double mean_gain(const std::vector<Outcome>& outcomes) {
  double sum = 0;
  for (const Outcome& o : outcomes) sum += o.won() ? std::log(o.planned / o.best) : 0;
  return outcomes.empty() ? 1 : std::exp(sum / static_cast<double>(outcomes.size()));
}

std::string text(const Choice& choice) {
  return choice.block_h ? concat(choice.block_h, " x ", choice.splits) : std::to_string(choice.splits);
}

}  // namespace

int tune(const Options& options) {
  const std::string path = options.output.empty() ? tuning_path() : options.output;
  require(PASA_ERROR_VALUE, !path.empty(), "no cache folder and no PASA_TUNE_TABLE: name the table with --out");
  const auto device = open_for(options, options.kernels.empty() ? "" : options.kernels[0]);
  require(PASA_ERROR_UNSUPPORTED, device->keeps_time(), device->name(), " keeps no time");
  const Backend& backend = tunable(options, *device);
  require_writable(path);
  setenv("PASA_TUNE_TABLE", "", 1);  // what is compared with is the planner alone

  Tuner tuner(*device, backend, options.timing);
  const std::vector<Outcome> outcomes =
      options.problems.empty() ? tune_grid(tuner, *device, options.threads) : tune_problems(tuner, *device, options);
  write_table(path, tuner.machine(), outcomes);

  const auto won = std::ranges::count_if(outcomes, &Outcome::won);
  if (options.json) {
    Json rows = Json::array();
    for (const Outcome& o : outcomes) {
      Json trials = Json::array();
      for (const Trial& t : o.trials) trials.push_back({t.choice.block_h, t.choice.splits, t.seconds * 1e6});
      rows.push_back({{"keys", o.shape.keys},
                      {"heads", o.shape.heads},
                      {"tokens", o.shape.tokens},
                      {"length", o.shape.length},
                      {"plan", o.plan},
                      {"planned_us", o.planned * 1e6},
                      {"best_us", o.best * 1e6},
                      {"block_h", o.choice.block_h},
                      {"splits", o.choice.splits},
                      {"won", o.won()},
                      {"trials", trials}});
    }
    print("{}\n", Json{{"pasa", pasa_version()},
                       {"machine", tuner.machine()},
                       {"device", device->description()},
                       {"kernel", backend.name},
                       {"table", path},
                       {"shapes", outcomes.size()},
                       {"won", won},
                       {"mean_gain", mean_gain(outcomes)},
                       {"rows", rows}}
                      .dump());
    return 0;
  }
  Table table({"keys", "heads", "rows", "a row's keys", "planner", "best", "gain", "by"}, 1);
  for (const Outcome& o : outcomes) {
    if (!o.won()) continue;
    table.add({o.shape.keys, std::to_string(o.shape.heads), std::to_string(o.shape.tokens),
               std::to_string(o.shape.length), duration(o.planned), duration(o.best), percent(o.planned / o.best - 1),
               text(o.choice)});
  }
  if (won) table.print_all();
  print("{} on {}: of {} shapes {} gain more than {:.0f} %; over all of them {}\n{}\n", backend.name, tuner.machine(),
        outcomes.size(), won, 100 * (kLeastGain - 1), percent(mean_gain(outcomes) - 1), path);
  if (won) print("by: {}splits\n", device->type() == PASA_CPU ? "" : "heads a tile x ");
  return 0;
}

}  // namespace pasa
