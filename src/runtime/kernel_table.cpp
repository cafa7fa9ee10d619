#include "runtime/kernel_table.h"

#include <cstdlib>

#include "runtime/check.h"

namespace qcore {
namespace {

constexpr int kMaxOperators = 32;
constexpr int kMaxRows = 32;

// Filled by the constructors of the operators' tables while libqcore is loaded, read-only afterwards.
struct Registry {
  OperatorTable* tables[kMaxOperators] = {};
  int count = 0;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

// One more than the row, so that zero-initialized thread-local storage means "none".
thread_local signed char forced_rows[kMaxOperators];
thread_local signed char last_rows[kMaxOperators];

OperatorTable* find_operator(const std::string& op, const char* asked_by) {
  const Registry& all = registry();
  for (int i = 0; i < all.count; ++i)
    if (op == all.tables[i]->op()) return all.tables[i];
  std::string known;
  for (int i = 0; i < all.count; ++i) known += (i ? ", " : "") + std::string(all.tables[i]->op());
  throw ValueError(message(asked_by, ": there is no operator '", op, "', expected one of: ", known));
}

int find_available_row(const OperatorTable& table, const std::string& name, const char* asked_by) {
  const int row = table.find(name);
  if (row < 0) {
    std::string known;
    for (const auto& r : table.rows()) known += (known.empty() ? "" : ", ") + std::string(r.name);
    throw ValueError(
        message(asked_by, ": operator '", table.op(), "' has no kernel '", name, "', expected one of: ", known));
  }
  QCORE_CHECK_VALUE(table.available(row), asked_by, ": kernel '", name, "' of operator '", table.op(),
                    "' is not available here: it needs ", table.rows()[row].needs);
  return row;
}

// QCORE_FORCE_KERNEL = "linear=reference,conv2d=direct_avx2"; -1 where it does not name the operator.
int row_forced_by_environment(const OperatorTable& table) {
  const char* value = std::getenv("QCORE_FORCE_KERNEL");
  std::string rest = value ? value : "";
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const auto equals = item.find('=');
    QCORE_CHECK_VALUE(equals != std::string::npos, "environment variable QCORE_FORCE_KERNEL has the item '", item,
                      "', expected OPERATOR=KERNEL");
    if (item.substr(0, equals) != table.op()) {
      find_operator(item.substr(0, equals), "environment variable QCORE_FORCE_KERNEL");
      continue;
    }
    return find_available_row(table, item.substr(equals + 1), "environment variable QCORE_FORCE_KERNEL");
  }
  return -1;
}

}  // namespace

OperatorTable::OperatorTable(const char* op, std::vector<Row> rows)
    : op_(op), index_(registry().count), rows_(std::move(rows)), runs_(new std::atomic<std::uint64_t>[rows_.size()]()) {
  if (index_ >= kMaxOperators || static_cast<int>(rows_.size()) > kMaxRows)
    throw Error(message("kernel table of '", op, "' does not fit: raise kMaxOperators or kMaxRows"));
  registry().tables[registry().count++] = this;
}

bool OperatorTable::available(int row) const { return rows_[row].available(); }

int OperatorTable::find(const std::string& name) const {
  for (int row = 0; row < static_cast<int>(rows_.size()); ++row)
    if (name == rows_[row].name) return row;
  return -1;
}

int OperatorTable::forced() const {
  if (forced_rows[index_]) return forced_rows[index_] - 1;
  static const bool any = std::getenv("QCORE_FORCE_KERNEL") != nullptr;
  return any ? row_forced_by_environment(*this) : -1;
}

void OperatorTable::force(int row) { forced_rows[index_] = static_cast<signed char>(row + 1); }

int OperatorTable::last() const { return last_rows[index_] - 1; }

void OperatorTable::record(int row) {
  runs_[row].fetch_add(1, std::memory_order_relaxed);
  last_rows[index_] = static_cast<signed char>(row + 1);
}

void OperatorTable::throw_refused(int row, const char* reason) const {
  throw ValueError(message(op_, ": the forced kernel '", rows_[row].name, "' does not take this call: ", reason));
}

void OperatorTable::throw_no_kernel(const std::vector<const char*>& reasons) const {
  std::string text = message(op_, ": no kernel takes this call");
  for (std::size_t row = 0; row < rows_.size(); ++row)
    text += message("; ", rows_[row].name, ": ", reasons[row] ? reasons[row] : "not available on this machine");
  throw ValueError(text);
}

std::vector<KernelInfo> kernels(const std::string& op) {
  std::vector<KernelInfo> infos;
  const OperatorTable* only = op.empty() ? nullptr : find_operator(op, "kernels");
  for (int i = 0; i < registry().count; ++i) {
    const OperatorTable& table = *registry().tables[i];
    if (only && only != &table) continue;
    for (int row = 0; row < static_cast<int>(table.rows().size()); ++row) {
      const auto& r = table.rows()[row];
      infos.push_back({table.op(), r.name, r.device == DeviceType::cpu ? "cpu" : "cuda", table.available(row), r.needs,
                       table.runs(row)});
    }
  }
  return infos;
}

std::string last_kernel(const std::string& op) {
  const OperatorTable& table = *find_operator(op, "last_kernel");
  return table.last() < 0 ? "" : table.rows()[table.last()].name;
}

ForceKernel::ForceKernel(const std::string& op, const std::string& name) : op_(find_operator(op, "force_kernel")) {
  auto* table = static_cast<OperatorTable*>(op_);
  const int row = find_available_row(*table, name, "force_kernel");
  previous_ = table->forced();
  table->force(row);
}

ForceKernel::~ForceKernel() { static_cast<OperatorTable*>(op_)->force(previous_); }

}  // namespace qcore
