#include "tools/ptxemu/ptx.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <deque>
#include <optional>

#include "tools/ptxemu/ptxemu.h"

namespace ptxemu {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

// A cursor over text, without comments.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool done() {
    skip();
    return at_ >= text_.size();
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected '") + c + "'");
  }
  // Letters, digits, _ $ % . and, inside, the :: of a qualifier.
  std::string_view word() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      if (is_name(text_[at_])) {
        ++at_;
      } else if (text_.substr(at_, 2) == "::") {
        at_ += 2;
      } else {
        break;
      }
    }
    if (at_ == begin) fail("expected a name");
    return text_.substr(begin, at_ - begin);
  }
  std::string_view line() {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view rest = text_.substr(at_, end - at_);
    at_ = end;
    return rest;
  }
  // Up to `end`, which is taken too.
  std::string_view until(char end) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) fail(std::string("'") + end + "' is missing");
    const std::string_view found_text = text_.substr(at_, found - at_);
    at_ = found + 1;
    return found_text;
  }
  // What a brace just taken encloses.
  std::string_view braced() {
    const std::size_t begin = at_;
    for (int depth = 1; depth > 0; ++at_) {
      if (at_ >= text_.size()) fail("a brace is not closed");
      if (text_[at_] == '{') ++depth;
      if (text_[at_] == '}') --depth;
    }
    return text_.substr(begin, at_ - 1 - begin);
  }
  [[noreturn]] void fail(const std::string& what) const {
    const std::size_t begin = at_ < 60 ? 0 : at_ - 60;
    throw Error("PTX: " + what + " at '" + std::string(text_.substr(begin, at_ - begin)) + "<here>" +
                std::string(text_.substr(std::min(at_, text_.size()), 40)) + "'");
  }

 private:
  void skip() {
    while (at_ < text_.size()) {
      if (is_space(text_[at_])) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        break;
      }
    }
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<i64> number(std::string_view word) {
  const bool minus = word.starts_with('-');
  if (minus) word.remove_prefix(1);
  if (word.empty() || !std::isdigit(static_cast<unsigned char>(word[0]))) return std::nullopt;
  if (word.ends_with('U')) word.remove_suffix(1);
  int base = 10;
  if (word.starts_with("0f") || word.starts_with("0F") || word.starts_with("0d") || word.starts_with("0D") ||
      word.starts_with("0x") || word.starts_with("0X")) {
    base = 16;
    word.remove_prefix(2);
  }
  u64 value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return static_cast<i64>(minus ? -value : value);
}

u64 type_bytes(std::string_view type) {
  const std::size_t digit = type.find_first_of("0123456789");
  if (digit == std::string_view::npos) throw Error("PTX: no type: " + std::string(type));
  return static_cast<u64>(*number(type.substr(digit))) / 8;
}

// "[.align N] .b8 name[count]", behind the space's name; returns the name.
std::string_view declaration(Reader& in, Variable& variable) {
  for (;;) {
    const std::string_view word = in.word();
    if (word == ".align") {
      variable.alignment = static_cast<u64>(*number(in.word()));
    } else if (word == ".attribute" || word == ".ptr") {
      in.fail("unknown attribute of a variable");
    } else if (word.starts_with('.')) {
      variable.bytes = type_bytes(word);
      variable.alignment = std::max(variable.alignment, variable.bytes);
    } else {
      if (in.take('[')) {
        if (in.take(']')) {
          variable.bytes = 0;
        } else {
          variable.bytes *= static_cast<u64>(*number(in.word()));
          in.expect(']');
        }
      }
      return word;
    }
  }
}

void place(Variable& variable, u64& end) {
  variable.at = (end + variable.alignment - 1) / variable.alignment * variable.alignment;
  end = variable.at + variable.bytes;
}

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    parts.push_back(name.substr(0, dot));
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return parts;
}

// The statements of a kernel's body.
class Body {
 public:
  Body(Function& function, const std::map<std::string, Variable>& module, std::string_view text)
      : function_(function), module_(module), in_(text) {}

  void parse() {
    scopes_.push_back({});
    open_.push_back(0);
    while (!in_.done()) statement();
    for (const auto& [instruction, operand, scope] : jumps_) resolve(instruction, operand, scope);
  }

 private:
  struct Scope {
    std::size_t parent = 0;
    std::map<std::string, i32, std::less<>> registers;
    std::map<std::string, i64, std::less<>> labels;
  };

  void statement() {
    if (in_.take('{')) {
      scopes_.push_back({open_.back(), {}, {}});
      open_.push_back(scopes_.size() - 1);
      return;
    }
    if (in_.take('}')) {
      open_.pop_back();
      if (open_.empty()) in_.fail("a brace too many");
      return;
    }
    if (in_.take(';')) return;
    Instruction instruction;
    if (in_.take('@')) {
      instruction.negated = in_.take('!');
      instruction.predicate = find_register(in_.word());
      if (instruction.predicate < 0) in_.fail("an unknown predicate");
    }
    const std::string_view word = in_.word();
    if (word == ".loc") {
      Reader rest(in_.line());
      file_ = static_cast<u32>(*number(rest.word()));
      line_ = static_cast<u32>(*number(rest.word()));
      return;
    }
    if (word == ".pragma") {
      in_.until(';');
      return;
    }
    if (word == ".reg") return registers();
    if (word == ".shared" || word == ".local") return array(word == ".shared" ? Space::kShared : Space::kLocal);
    if (in_.take(':')) {
      scopes_[open_.back()].labels.emplace(word, static_cast<i64>(function_.code.size()));
      return;
    }
    if (word.starts_with('.')) in_.fail("unknown directive " + std::string(word));
    instruction.name = word;
    instruction.file = file_;
    instruction.line = line_;
    while (!in_.take(';')) {
      instruction.op.push_back(operand());
      if (in_.take('|')) {
        instruction.op.push_back(operand());
        instruction.pair = true;
      }
      if (in_.peek() != ';') in_.expect(',');
    }
    const std::size_t position = function_.code.size();
    for (std::size_t i = 0; i < instruction.op.size(); ++i) {
      if (instruction.op[i].kind == Operand::kLabel) jumps_.push_back({position, i, open_.back()});
    }
    function_.code.push_back(std::move(instruction));
  }

  void registers() {
    const std::string_view type = in_.word();
    const Width width = type == ".pred"         ? Width::kPredicate
                        : type_bytes(type) == 8 ? Width::k64
                        : type_bytes(type) == 4 ? Width::k32
                        : type_bytes(type) <= 2 ? Width::k16
                                                : throw Error("PTX: registers of type " + std::string(type));
    do {
      const std::string name(in_.word());
      auto& names = scopes_[open_.back()].registers;
      const auto add = [&](std::string full) {
        names[full] = static_cast<i32>(function_.registers.size());
        function_.registers.push_back({width, std::move(full)});
      };
      if (in_.take('<')) {
        const i64 count = *number(in_.word());
        in_.expect('>');
        for (i64 i = 0; i < count; ++i) add(name + std::to_string(i));
      } else {
        add(name);
      }
    } while (in_.take(','));
    in_.expect(';');
  }

  void array(Space space) {
    Variable variable{.space = space};
    const std::string name(declaration(in_, variable));
    place(variable, space == Space::kShared ? function_.shared_bytes : function_.local_bytes);
    function_.variables[name] = variable;
    in_.expect(';');
  }

  i32 find_register(std::string_view name) const {
    for (std::size_t scope = open_.back();; scope = scopes_[scope].parent) {
      const auto found = scopes_[scope].registers.find(name);
      if (found != scopes_[scope].registers.end()) return found->second;
      if (scope == 0) return -1;
    }
  }
  const Variable* find_variable(std::string_view name) {
    const std::string key(name);
    if (const auto found = function_.variables.find(key); found != function_.variables.end()) return &found->second;
    const auto found = module_.find(key);
    if (found == module_.end()) return nullptr;
    if (found->second.space != Space::kShared || found->second.bytes == 0) return &found->second;
    // A module's shared array is one of every kernel that names it.
    Variable& own = function_.variables[key] = found->second;
    place(own, function_.shared_bytes);
    return &own;
  }

  std::vector<Operand> braced() {
    std::vector<Operand> parts;
    do {
      parts.push_back(operand());
    } while (in_.take(','));
    in_.expect('}');
    return parts;
  }

  // name, number, or name+number: the start of an operand or what stands in brackets.
  Operand simple() {
    Operand o;
    if (in_.take('-')) {
      o.kind = Operand::kImmediate;
      o.value = -*number(in_.word());
      return o;
    }
    const std::string_view word = in_.word();
    if (const std::optional<i64> value = number(word)) {
      o.kind = Operand::kImmediate;
      o.value = *value;
      return o;
    }
    if (const i32 reg = find_register(word); reg >= 0) {
      o.kind = Operand::kRegister;
      o.reg = reg;
    } else if (const Variable* variable = find_variable(word)) {
      o.kind = Operand::kVariable;
      o.variable = variable;
    } else if (word == "_") {
      o.kind = Operand::kSink;
      return o;
    } else {
      o.kind = word.starts_with('%') ? Operand::kSpecial : Operand::kLabel;
      o.text = word;
      return o;
    }
    if (in_.take('+')) o.value = (in_.take('-') ? -1 : 1) * *number(in_.word());
    return o;
  }

  Operand operand() {
    Operand o;
    if (in_.take('{')) {
      o.kind = Operand::kVector;
      o.parts = braced();
      return o;
    }
    if (in_.take('!')) {
      o = simple();
      o.kind = Operand::kNegated;
      return o;
    }
    if (!in_.take('[')) return simple();
    o = simple();
    if (o.kind == Operand::kSpecial || o.kind == Operand::kLabel) in_.fail("unknown name in an address");
    o.kind = Operand::kAddress;
    if (in_.take(',')) {
      in_.expect('{');
      o.parts = braced();
    }
    in_.expect(']');
    return o;
  }

  void resolve(std::size_t instruction, std::size_t index, std::size_t scope) {
    Operand& o = function_.code[instruction].op[index];
    for (;; scope = scopes_[scope].parent) {
      const auto found = scopes_[scope].labels.find(o.text);
      if (found != scopes_[scope].labels.end()) {
        o.value = found->second;
        return;
      }
      if (scope == 0) throw Error("PTX: unknown name " + o.text + " in " + function_.code[instruction].name);
    }
  }

  struct Jump {
    std::size_t instruction, operand, scope;
  };
  Function& function_;
  const std::map<std::string, Variable>& module_;
  Reader in_;
  std::deque<Scope> scopes_;
  std::vector<std::size_t> open_;
  std::vector<Jump> jumps_;
  u32 file_ = 0, line_ = 0;
};

}  // namespace

Text::Text(std::string text) : text_(std::move(text)) {
  Reader in(text_);
  while (!in.done()) {
    const std::string_view word = in.word();
    if (word == ".visible" || word == ".weak" || word == ".extern") continue;
    if (word == ".version" || word == ".target" || word == ".address_size" || word == ".pragma") {
      in.line();
    } else if (word == ".file") {
      Reader rest(in.line());
      const auto index = static_cast<u32>(*number(rest.word()));
      rest.expect('"');
      files_[index] = rest.until('"');
    } else if (word == ".section") {
      in.word();
      in.expect('{');
      in.braced();
    } else if (word == ".entry") {
      const std::string name(in.word());
      const std::string_view head = in.peek() == '(' ? (in.take('('), in.until(')')) : std::string_view();
      std::string_view body = in.until('{');
      const std::string_view bounds = body;
      body = in.braced();
      // Bounds stand between parameters and body; both views are of text_, so one view can span them.
      entries_[name] = {std::string_view(head.data() ? head.data() : bounds.data(),
                                         static_cast<std::size_t>(bounds.data() + bounds.size() -
                                                                  (head.data() ? head.data() : bounds.data()))),
                        body};
    } else if (word == ".shared" || word == ".global" || word == ".const") {
      Variable variable{.space = word == ".shared"   ? Space::kShared
                                 : word == ".global" ? Space::kGlobal
                                                     : Space::kConst};
      const std::string name(declaration(in, variable));
      if (variable.space != Space::kShared) {
        storage_.emplace_back((variable.bytes + 7) / 8 + 1);
        auto* bytes = reinterpret_cast<u8*>(storage_.back().data());
        variable.at = reinterpret_cast<u64>(bytes);
        if (in.take('=')) {
          if (!in.take('{')) in.fail("an initialiser that is no list of bytes");
          u64 i = 0;
          do {
            const std::optional<i64> value = number(in.word());
            if (!value || i >= variable.bytes || variable.alignment > 8)
              in.fail("an initialiser that is no list of bytes");
            bytes[i++] = static_cast<u8>(*value);
          } while (in.take(','));
          in.expect('}');
        }
      }
      variables_[name] = variable;
      in.expect(';');
    } else {
      in.fail("unknown directive " + std::string(word));
    }
  }
}

std::vector<std::string> Text::kernels() const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.first);
  return names;
}

std::string Text::file(u32 number) const {
  const auto found = files_.find(number);
  if (found == files_.end()) return "?";
  return found->second.substr(found->second.rfind('/') + 1);
}

Function Text::parse(const std::string& kernel) const {
  const Entry& entry = entries_.at(kernel);
  Function function;
  function.name = kernel;
  Reader head(entry.head);
  while (!head.done()) {
    const std::string_view word = head.word();
    if (word == ".param") {
      Variable variable{.space = Space::kParam};
      const std::string name(declaration(head, variable));
      place(variable, function.parameter_bytes);
      function.parameters.push_back(variable);
      function.variables[name] = variable;
      if (!head.take(',')) head.take(')');
    } else if (word == ".maxntid") {
      u32 threads = 1;
      do {
        threads *= static_cast<u32>(*number(head.word()));
      } while (head.take(','));
      function.max_threads = threads;
    } else if (word == ".minnctapersm" || word == ".maxnreg") {
      head.word();
    } else {
      head.fail("unknown kernel directive " + std::string(word));
    }
  }
  // Behind the static arrays, whatever they are: the dynamic one has no size.
  Body(function, variables_, entry.body).parse();
  for (Instruction& instruction : function.code) instruction.part = split(instruction.name);
  return function;
}

}  // namespace ptxemu
