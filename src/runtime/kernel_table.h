#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "qcore/kernels.h"
#include "qcore/tensor_view.h"
#include "runtime/requirements.h"

namespace qcore {

// An operator's kernels without the type of its problem: names, availability, counts, forcing.
class OperatorTable {
 public:
  struct Row {
    const char* name;
    DeviceType device;
    const char* needs;
    bool (*available)();
  };

  OperatorTable(const char* op, std::vector<Row> rows);
  OperatorTable(const OperatorTable&) = delete;

  const char* op() const { return op_; }
  const std::vector<Row>& rows() const { return rows_; }
  bool available(int row) const;
  std::uint64_t runs(int row) const { return runs_[row].load(std::memory_order_relaxed); }
  int find(const std::string& name) const;  // -1 if there is none

  int forced() const;  // row the calling thread or QCORE_FORCE_KERNEL asks for, else -1
  void force(int row);
  int last() const;  // row the calling thread ran last, else -1
  void record(int row);

  [[noreturn]] void throw_refused(int row, const char* reason) const;
  // `reasons`: one for each row, null where the row takes the problem but is not available here.
  [[noreturn]] void throw_no_kernel(const std::vector<const char*>& reasons) const;

 private:
  const char* op_;
  int index_;
  std::vector<Row> rows_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> runs_;
};

// A row of a table: unsupported_reason() returns why the kernel can't take a problem, or nullptr; run() does it. pays()
// returns whether the row is chosen before those that follow; null: always.
template <class Problem>
struct Kernel {
  const char* name;
  Requirement needs;
  const char* (*unsupported_reason)(const Problem&);
  void (*run)(const Problem&);
  bool (*pays)(const Problem&) = nullptr;
};

template <class Problem>
class KernelTable : public OperatorTable {
 public:
  KernelTable(const char* op, std::vector<Kernel<Problem>> kernels)
      : OperatorTable(op, untyped(kernels)), kernels_(std::move(kernels)) {}

  // Runs the first row that is available and takes the problem, or the forced one.
  void run(const Problem& problem) {
    const int chosen = select(problem);
    kernels_[chosen].run(problem);
    record(chosen);
  }

 private:
  int select(const Problem& problem) const {
    const int wanted = forced();
    if (wanted >= 0) {
      const char* reason = kernels_[wanted].unsupported_reason(problem);
      if (reason) throw_refused(wanted, reason);
      return wanted;
    }
    for (int row = 0; row < static_cast<int>(kernels_.size()); ++row)
      if (can_run(row, problem) && !kernels_[row].unsupported_reason(problem) &&
          (!kernels_[row].pays || kernels_[row].pays(problem)))
        return row;
    std::vector<const char*> reasons;
    for (const auto& kernel : kernels_) reasons.push_back(kernel.unsupported_reason(problem));
    throw_no_kernel(reasons);
  }

  // The device first: asking whether a CUDA row is available starts the driver, which a call on the CPU must not.
  bool can_run(int row, const Problem& problem) const {
    return kernels_[row].needs.device == problem.device.type && available(row);
  }

  static std::vector<Row> untyped(const std::vector<Kernel<Problem>>& kernels) {
    std::vector<Row> rows;
    for (const auto& kernel : kernels)
      rows.push_back({kernel.name, kernel.needs.device, kernel.needs.text, kernel.needs.met});
    return rows;
  }

  std::vector<Kernel<Problem>> kernels_;
};

}  // namespace qcore
