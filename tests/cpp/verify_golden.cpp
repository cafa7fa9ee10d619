// Checks a golden file of QuantGRU.golden or QuantLSTM.golden against the library: verify_golden FILE. Status 0 if
// every integer is equal, 1 if one differs (the first is named: tensor, step, row, channel), 2 if the file is not such
// a file.
//
// A golden file is safetensors with int32 tensors only: eight bytes of length, a JSON object of names, shapes and
// offsets, then the integers. So a scanner for that one shape of JSON is all it takes to read it, and one file serves
// both verifiers. python/qcore/gru/golden.py and python/qcore/lstm/golden.py say what the tensors are.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "qcore/qcore.h"

namespace {

using qcore::DType;
using qcore::TensorView;

struct Integers {
  std::vector<std::int64_t> shape;
  std::vector<std::int32_t> values;
};
using Tensors = std::map<std::string, Integers>;

struct Unreadable : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Differs : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The header's JSON: objects of strings, numbers and lists of numbers.
class Scanner {
 public:
  explicit Scanner(const std::string& text) : text_(text) {}

  char next() {
    while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char c) {
    if (next() != c) throw Unreadable(std::string("its header has no '") + c + "' at byte " + std::to_string(at_));
    ++at_;
  }
  bool skip(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  std::string string() {
    expect('"');
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
      if (at_ < text_.size()) value += text_[at_];
    }
    expect('"');
    return value;
  }
  std::int64_t number() {
    std::int64_t value = 0;
    if (next() < '0' || next() > '9') throw Unreadable("its header has no number at byte " + std::to_string(at_));
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (value > (std::int64_t{1} << 40)) throw Unreadable("its header has a number beyond all files");
      value = 10 * value + (text_[at_] - '0');
    }
    return value;
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> values;
    expect('[');
    if (skip(']')) return values;
    do values.push_back(number());
    while (skip(','));
    expect(']');
    return values;
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

Integers tensor(Scanner& header, const std::string& name, const std::string& content, std::size_t first) {
  Integers made;
  std::vector<std::int64_t> ends;
  std::string dtype;
  header.expect('{');
  do {
    const std::string key = header.string();
    header.expect(':');
    if (key == "dtype")
      dtype = header.string();
    else if (key == "shape")
      made.shape = header.numbers();
    else if (key == "data_offsets")
      ends = header.numbers();
    else
      throw Unreadable(name + " has an unknown key " + key);
  } while (header.skip(','));
  header.expect('}');
  if (dtype != "I32") throw Unreadable(name + " has dtype " + dtype + ", expected I32");
  std::int64_t size = 1;
  for (const std::int64_t extent : made.shape) {
    if (extent > 1 << 30 || (extent && size > (std::int64_t{1} << 40) / extent))
      throw Unreadable(name + " is larger than any file");
    size *= extent;
  }
  const auto data = static_cast<std::int64_t>(content.size() - first);
  if (ends.size() != 2 || ends[1] - ends[0] != 4 * size || ends[1] > data)
    throw Unreadable(name + " lies outside the file, or has another size than its shape");
  made.values.resize(size);
  if (size) std::memcpy(made.values.data(), content.data() + first + ends[0], 4 * size);
  return made;
}

// `format` gets the name and version in the metadata.
Tensors read(const char* path, std::string& format) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Unreadable("can't be read");
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t length = 0;
  if (content.size() < 8) throw Unreadable("is shorter than 8 bytes");
  std::memcpy(&length, content.data(), 8);
  if (length > content.size() - 8) throw Unreadable("has a header longer than itself");
  const std::string text = content.substr(8, length);
  Scanner header(text);
  Tensors tensors;
  header.expect('{');
  do {
    const std::string name = header.string();
    header.expect(':');
    if (name != "__metadata__") {
      tensors[name] = tensor(header, name, content, 8 + length);
      continue;
    }
    header.expect('{');
    do {
      const std::string key = header.string();
      header.expect(':');
      const std::string value = header.string();
      if (key == "format") format = value;
    } while (header.skip(','));
    header.expect('}');
  } while (header.skip(','));
  header.expect('}');
  return tensors;
}

const Integers& find(const Tensors& tensors, const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw Unreadable("has no tensor " + name);
  if (found->second.shape.size() != shape.size()) throw Unreadable(name + " has another number of axes");
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] >= 0 && found->second.shape[axis] != shape[axis])
      throw Unreadable(name + " has " + std::to_string(found->second.shape[axis]) + " elements along axis " +
                       std::to_string(axis) + ", expected " + std::to_string(shape[axis]));
  return found->second;
}

[[noreturn]] void differs(const std::string& name, const char* first, std::int64_t t, std::int64_t b, std::int64_t n,
                          std::int32_t got, std::int32_t expected) {
  throw Differs(name + " differs first at " + first + " " + std::to_string(t) + ", row " + std::to_string(b) +
                ", channel " + std::to_string(n) + ": the file has " + std::to_string(got) + ", the definition gives " +
                std::to_string(expected));
}

std::vector<std::int16_t> weights(const Integers& from) {
  for (const std::int32_t value : from.values)
    if (value < -32768 || value > 32767) throw Unreadable("has the weight " + std::to_string(value));
  return {from.values.begin(), from.values.end()};
}

void read_formats(const Tensors& tensors, const std::string& prefix, qcore::FixedFormat* const* formats, int count) {
  const auto& rows = find(tensors, prefix + "formats", {count, 4}).values;
  for (int i = 0; i < count; ++i) *formats[i] = {rows[4 * i], rows[4 * i + 1] != 0, rows[4 * i + 2], rows[4 * i + 3]};
}

qcore::GruParameters gru_parameters(const Tensors& tensors, const std::string& prefix, std::int64_t features) {
  qcore::GruParameters p;
  const auto& options = find(tensors, prefix + "options", {6}).values;
  p.input_size = features;
  p.hidden_size = find(tensors, prefix + "parameters.r", {-1, -1}).shape[1];
  p.pipeline = options[0] ? qcore::GruPipeline::fused : qcore::GruPipeline::staged;
  p.rounding = options[1] ? qcore::ShiftRounding::half_even : qcore::ShiftRounding::half_away;
  p.linear_before_reset = tensors.count(prefix + "rh_g") == 0;
  p.tables = options[2] ? qcore::GruTableKind::interp : qcore::GruTableKind::exact;
  p.weight_bits = options[3];
  p.bias_bits = options[4];
  qcore::GruFormats& f = p.formats;
  qcore::FixedFormat* const all[] = {&f.x,     &f.h,     &f.wx, &f.rh, &f.rb, &f.rrh,      &f.z_pre,
                                     &f.r_pre, &f.g_pre, &f.z,  &f.r,  &f.g,  &f.old_part, &f.new_part};
  read_formats(tensors, prefix, all, 14);
  const std::int64_t n = 3 * p.hidden_size;
  p.w = weights(find(tensors, prefix + "parameters.w", {n, features}));
  p.r = weights(find(tensors, prefix + "parameters.r", {n, p.hidden_size}));
  p.bx = find(tensors, prefix + "parameters.bx", {n}).values;
  p.br = find(tensors, prefix + "parameters.br", {n}).values;
  p.w_exponents = find(tensors, prefix + "parameters.w_exponents", {n}).values;
  p.r_exponents = find(tensors, prefix + "parameters.r_exponents", {n}).values;
  p.bx_exponents = find(tensors, prefix + "parameters.bx_exponents", {n}).values;
  p.br_exponents = find(tensors, prefix + "parameters.br_exponents", {n}).values;
  return p;
}

qcore::LstmParameters lstm_parameters(const Tensors& tensors, const std::string& prefix, std::int64_t features) {
  qcore::LstmParameters p;
  const auto& options = find(tensors, prefix + "options", {5}).values;
  const std::string start = prefix + "parameters.";
  const auto& r_shape = find(tensors, start + "r", {-1, -1}).shape;
  const bool projected = tensors.count(start + "projection") > 0;
  p.input_size = features;
  p.hidden_size = r_shape[0] / 4;
  p.projection_size = projected ? r_shape[1] : 0;
  p.rounding = options[0] ? qcore::ShiftRounding::half_even : qcore::ShiftRounding::half_away;
  p.tables = options[1] ? qcore::TableKind::interp : qcore::TableKind::exact;
  p.weight_bits = options[2];
  p.bias_bits = options[3];
  qcore::LstmFormats& f = p.formats;
  qcore::FixedFormat* const all[] = {&f.x,     &f.h, &f.c, &f.wx, &f.rh, &f.i_pre,  &f.f_pre, &f.g_pre,
                                     &f.o_pre, &f.i, &f.f, &f.g,  &f.o,  &f.c_tanh, &f.m};
  read_formats(tensors, prefix, all, projected ? 15 : 14);
  const std::int64_t n = 4 * p.hidden_size;
  p.w = weights(find(tensors, start + "w", {n, features}));
  p.r = weights(find(tensors, start + "r", {n, p.state_size()}));
  p.b = find(tensors, start + "b", {n}).values;
  p.w_exponents = find(tensors, start + "w_exponents", {n}).values;
  p.r_exponents = find(tensors, start + "r_exponents", {n}).values;
  p.b_exponents = find(tensors, start + "b_exponents", {n}).values;
  if (projected) {
    p.projection = weights(find(tensors, start + "projection", {p.projection_size, p.hidden_size}));
    p.projection_exponents = find(tensors, start + "projection_exponents", {p.projection_size}).values;
  }
  if (tensors.count(start + "peepholes")) {
    p.peepholes = weights(find(tensors, start + "peepholes", {3, p.hidden_size}));
    p.peephole_exponents = find(tensors, start + "peepholes_exponents", {3}).values;
  }
  return p;
}

// Codes as run() takes them, of rows of the format's dtype.
class Codes {
 public:
  Codes(const std::int32_t* values, std::int64_t count, const qcore::FixedFormat& format) : narrow_(format.bits <= 8) {
    for (std::int64_t i = 0; i < count; ++i)
      if (values[i] < format.lowest() || values[i] > format.highest())
        throw Unreadable("has the code " + std::to_string(values[i]) + ", which its format does not have");
    if (narrow_)
      bytes_.assign(values, values + count);
    else
      words_.assign(values, values + count);
  }
  TensorView view(std::initializer_list<std::int64_t> shape) const {
    return narrow_ ? TensorView(bytes_.data(), DType::i8, shape) : TensorView(words_.data(), DType::i16, shape);
  }

 private:
  bool narrow_;
  std::vector<std::int8_t> bytes_;
  std::vector<std::int16_t> words_;
};

// A tensor that a step computes, and where a row of a trace has it.
struct Part {
  const char* name;
  std::int64_t first, count;
};

// A tensor that goes from step to step; `last` is what the file calls its values after the last step.
struct State {
  const char *name, *last;
  qcore::FixedFormat format;
  std::int64_t size;
};

// Each operator has its object of the library, and what there is in a file, parts in the order of computation.

// In units of H.
constexpr Part kTorchs[] = {{"wx", 0, 3},     {"rh", 3, 3}, {"z_pre", 6, 1},     {"z", 11, 1},
                            {"r_pre", 7, 1},  {"r", 12, 1}, {"rb", 8, 1},        {"rrh", 9, 1},
                            {"g_pre", 10, 1}, {"g", 13, 1}, {"old_part", 14, 1}, {"new_part", 15, 1},
                            {"h", 16, 1}};
// With linear_before_reset = 0.
constexpr Part kResets[] = {{"wx", 0, 3}, {"rh", 3, 2},        {"z_pre", 6, 1},     {"z", 11, 1}, {"r_pre", 7, 1},
                            {"r", 12, 1}, {"rrh", 9, 1},       {"rh_g", 5, 1},      {"rb", 8, 1}, {"g_pre", 10, 1},
                            {"g", 13, 1}, {"old_part", 14, 1}, {"new_part", 15, 1}, {"h", 16, 1}};

struct Gru {
  explicit Gru(const qcore::GruParameters& p) : object(qcore::QuantizedGru::make(p)), format(p.formats.x) {
    const std::int64_t size = p.hidden_size;
    trace_size = 17 * size;
    states = {{"h", "last", p.formats.h, size}};
    const auto add = [&](const Part& part) {
      const std::string name = part.name;
      const bool staged = name == "old_part" || name == "new_part" || name == (p.linear_before_reset ? "rrh" : "rb");
      if (staged && p.pipeline == qcore::GruPipeline::fused) return;
      parts.push_back({part.name, part.first * size, part.count * size});
    };
    if (p.linear_before_reset)
      for (const Part& part : kTorchs) add(part);
    else
      for (const Part& part : kResets) add(part);
  }
  void trace(const TensorView& x, const std::vector<TensorView>& from, const TensorView& to) const {
    object.trace(x, &from[0], false, to);
  }

  qcore::QuantizedGru object;
  qcore::FixedFormat format;  // of x
  std::vector<const char*> tables = {"z", "r", "g"};
  std::vector<State> states;
  std::vector<Part> parts;
  std::int64_t trace_size;
};

struct Lstm {
  explicit Lstm(const qcore::LstmParameters& p) : object(qcore::QuantizedLstm::make(p)), format(p.formats.x) {
    const std::int64_t size = p.hidden_size, outputs = p.state_size();
    states = {{"h", "last_h", p.formats.h, outputs}, {"c", "last_c", p.formats.c, size}};
    const Part first[] = {{"wx", 0, 4},    {"rh", 4, 4},     {"i_pre", 8, 1},  {"i", 12, 1},
                          {"f_pre", 9, 1}, {"f", 13, 1},     {"g_pre", 10, 1}, {"g", 14, 1},
                          {"c", 16, 1},    {"o_pre", 11, 1}, {"o", 15, 1},     {"c_tanh", 17, 1}};
    for (const Part& part : first) parts.push_back({part.name, part.first * size, part.count * size});
    trace_size = 18 * size;
    if (p.projection_size) {
      parts.push_back({"m", trace_size, size});
      trace_size += size;
    }
    parts.push_back({"h", trace_size, outputs});
    trace_size += outputs;
  }
  void trace(const TensorView& x, const std::vector<TensorView>& from, const TensorView& to) const {
    object.trace(x, &from[0], &from[1], false, to);
  }

  qcore::QuantizedLstm object;
  qcore::FixedFormat format;  // of x
  std::vector<const char*> tables = {"i", "f", "g", "o", "c_tanh"};
  std::vector<State> states;
  std::vector<Part> parts;
  std::int64_t trace_size;
};

// One step at a time, from the file's own states: a wrong number is found where it is, not in what follows from it.
template <class Op>
void check_steps(const Tensors& tensors, const std::string& prefix, const Op& op, const Integers& x, bool reverse) {
  const std::int64_t steps = x.shape[0], batch = x.shape[1], c = x.shape[2];
  std::vector<std::int32_t> trace(batch * op.trace_size);
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t t = reverse ? steps - 1 - i : i, before = reverse ? t + 1 : t - 1;
    const Codes inputs(&x.values[t * batch * c], batch * c, op.format);
    std::vector<Codes> codes;
    std::vector<TensorView> views;
    for (const State& state : op.states) {
      const std::int64_t count = batch * state.size;
      const Integers& first = find(tensors, prefix + state.name + "0", {batch, state.size});
      const Integers& all = find(tensors, prefix + state.name, {steps, batch, state.size});
      codes.emplace_back(i ? &all.values[before * count] : first.values.data(), count, state.format);
    }
    for (std::size_t n = 0; n < codes.size(); ++n) views.push_back(codes[n].view({batch, op.states[n].size}));
    op.trace(inputs.view({1, batch, c}), views, TensorView(trace.data(), DType::i32, {1, batch, op.trace_size}));
    for (const Part& part : op.parts) {
      const std::int64_t n = part.count;
      const Integers& file = find(tensors, prefix + part.name, {steps, batch, n});
      for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t k = 0; k < n; ++k) {
          const std::int32_t got = file.values[(t * batch + b) * n + k];
          const std::int32_t expected = trace[b * op.trace_size + part.first + k];
          if (got != expected) differs(prefix + part.name, "step", t, b, k, got, expected);
        }
    }
  }
}

template <class Op>
void check_tables(const Tensors& tensors, const std::string& prefix, const Op& op) {
  for (std::size_t number = 0; number < op.tables.size(); ++number) {
    const auto& expected = op.object.table(static_cast<int>(number));
    const std::string name = prefix + "table_" + op.tables[number];
    const auto& file = find(tensors, name, {static_cast<std::int64_t>(expected.size())}).values;
    for (std::size_t i = 0; i < file.size(); ++i)
      if (file[i] != expected[i])
        throw Differs(name + " differs first at entry " + std::to_string(i) + ": the file has " +
                      std::to_string(file[i]) + ", the function gives " + std::to_string(expected[i]));
  }
}

// `make` makes the operator's object of a direction.
template <class Make>
std::string check(const Tensors& tensors, const Make& make) {
  const int directions = tensors.count("0.1.h0") ? 2 : 1;
  int layer = 0;
  std::int64_t steps = 0, batch = 0, size = 0;
  std::vector<const Integers*> outputs;
  const auto compare_outputs = [&](const std::string& name) {
    const Integers& file = find(tensors, name, {steps, batch, directions * size});
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t k = 0; k < directions * size; ++k) {
          const std::int32_t got = file.values[(t * batch + b) * directions * size + k];
          const std::int32_t expected = outputs[k / size]->values[(t * batch + b) * size + k % size];
          if (got != expected) differs(name, "step", t, b, k, got, expected);
        }
  };
  std::vector<State> states;
  std::map<std::string, std::vector<std::int32_t>> last;
  for (; tensors.count(std::to_string(layer) + ".x"); ++layer) {
    const std::string name = std::to_string(layer) + ".x";
    const Integers& x = find(tensors, name, {-1, -1, -1});
    if (layer) compare_outputs(name);
    steps = x.shape[0], batch = x.shape[1];
    if (!steps || !batch) throw Unreadable("has no steps or no rows");
    outputs.clear();
    for (int direction = 0; direction < directions; ++direction) {
      const std::string prefix = std::to_string(layer) + "." + std::to_string(direction) + ".";
      const auto op = make(prefix, x.shape[2]);
      states = op.states;
      size = states[0].size;
      check_tables(tensors, prefix, op);
      check_steps(tensors, prefix, op, x, direction == 1);
      outputs.push_back(&find(tensors, prefix + "h", {steps, batch, size}));
      for (const State& state : states) {
        const auto& values = find(tensors, prefix + state.name, {steps, batch, state.size}).values;
        const auto end = values.begin() + (direction ? 0 : (steps - 1) * batch * state.size);
        last[state.last].insert(last[state.last].end(), end, end + batch * state.size);
      }
    }
  }
  if (!layer) throw Unreadable("has no tensor 0.x");
  compare_outputs("y");
  for (const State& state : states) {
    const auto& file = find(tensors, state.last, {std::int64_t{layer} * directions, batch, state.size}).values;
    const auto& expected = last[state.last];
    for (std::size_t i = 0; i < file.size(); ++i)
      if (file[i] != expected[i])
        differs(state.last, "layer and direction", i / (batch * state.size), i / state.size % batch, i % state.size,
                file[i], expected[i]);
  }
  return std::to_string(layer) + " layers of " + std::to_string(directions) + " directions, " + std::to_string(steps) +
         " steps: equal";
}

std::string check(const char* path) {
  std::string format;
  const Tensors tensors = read(path, format);
  if (format == "qcore.gru.golden.1")
    return check(tensors, [&](const std::string& prefix, std::int64_t features) {
      return Gru(gru_parameters(tensors, prefix, features));
    });
  if (format == "qcore.lstm.golden.1")
    return check(tensors, [&](const std::string& prefix, std::int64_t features) {
      return Lstm(lstm_parameters(tensors, prefix, features));
    });
  throw Unreadable("has format " + format);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: verify_golden FILE\n");
    return 2;
  }
  try {
    std::printf("%s: %s\n", arguments[1], check(arguments[1]).c_str());
    return 0;
  } catch (const Differs& difference) {
    std::fprintf(stderr, "%s: %s\n", arguments[1], difference.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[1], error.what());
    return 2;
  }
}
