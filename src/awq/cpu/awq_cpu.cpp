#include <algorithm>

#include "awq/dispatch.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskElements = 1 << 17;
constexpr std::int64_t kChunkColumns = 2048;  // whose zeros and scales stay in the first-level cache
// Beyond this out does not stay in the caches, and is written past them.
constexpr std::int64_t kPastCacheBytes = 8 << 20;
constexpr std::int64_t kLine = 64;

bool is_aligned(const std::uint16_t* at, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}
bool is_line_stride(std::int64_t stride) { return stride * 2 % kLine == 0; }

// A rectangle of one group.
struct Part {
  std::int64_t group, row, rows, column, columns;  // `row` counts from the first of all
};

class Run {
 public:
  Run(const AwqProblem& problem, const AwqKernels& kernels)
      : problem_(problem),
        weight_(problem.weight),
        kernels_(kernels),
        past_cache_(weight_.k * weight_.n * 2 >= kPastCacheBytes && is_aligned(problem.out, kAwqWordBytes) &&
                    is_line_stride(std::max(problem.out_k, problem.out_n))) {}

  void store(const Part& part, float* zeros, float* scales) const {
    kernels_.load_group(weight_.qzeros + part.group * weight_.qzeros_row + part.column / 8,
                        weight_.scales + part.group * weight_.scales_row + part.column, part.columns, zeros, scales);
    std::uint16_t* out = problem_.out + part.row * problem_.out_k + part.column * problem_.out_n;
    const AwqRows rows{weight_.qweight + part.row * weight_.qweight_row + part.column / 8,
                       weight_.qweight_row,
                       part.rows,
                       part.columns,
                       zeros,
                       scales};
    if (problem_.out_n == 1) return kernels_.store_rows(rows, out, problem_.out_k, past_cache_);
    for (std::int64_t row = 0; row < part.rows; row += kAwqTileRows) {
      const AwqRows tile{rows.words + row * rows.row_words,
                         rows.row_words,
                         std::min<std::int64_t>(kAwqTileRows, part.rows - row),
                         part.columns,
                         zeros,
                         scales};
      kernels_.store_columns(tile, out + row, problem_.out_n, past_cache_ && is_aligned(out + row, kLine));
    }
  }

 private:
  const AwqProblem& problem_;
  const AwqWeight& weight_;
  const AwqKernels& kernels_;
  bool past_cache_;
};

}  // namespace

const char* awq_cpu_unsupported_reason(const AwqProblem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  if (!problem.weight.has_whole_rows()) return "it takes weights whose rows are contiguous";
  if (problem.out_n != 1 && problem.out_k != 1) return "it writes contiguous rows or contiguous columns";
  return nullptr;
}

void run_awq_cpu(const AwqProblem& problem, const AwqKernels& kernels) {
  const AwqWeight& weight = problem.weight;
  const Run run(problem, kernels);
  const std::int64_t chunk = kChunkColumns, chunks = ceil_div(weight.n, chunk);
  // Part of a long group, or several short ones.
  const std::int64_t wanted = std::max<std::int64_t>(1, kTaskElements / std::min(chunk, weight.n));
  const std::int64_t part_rows = std::min(weight.group_size, round_up(wanted, kAwqTileRows));
  const std::int64_t parts = ceil_div(weight.group_size, part_rows);  // of a group
  const std::int64_t together = std::max<std::int64_t>(1, wanted / part_rows);
  const std::int64_t row_parts = weight.groups() * parts, row_tasks = ceil_div(row_parts, together);
  parallel_for(row_tasks * chunks, [&](std::int64_t task) {
    Scratch scratch;
    float *zeros = scratch.take<float>(chunk), *scales = scratch.take<float>(chunk);
    // Tasks of columns go down them, so that their pages are written from end to end, and what a tile fetches early is
    // what is wanted next.
    const std::int64_t row_task = problem.out_n == 1 ? task / chunks : task % row_tasks;
    const std::int64_t column = (problem.out_n == 1 ? task % chunks : task / row_tasks) * chunk;
    const std::int64_t end = std::min(row_parts, (row_task + 1) * together);
    for (std::int64_t i = row_task * together; i < end; ++i) {
      const std::int64_t group = i / parts, first = i % parts * part_rows;
      run.store({group, group * weight.group_size + first, std::min(part_rows, weight.group_size - first), column,
                 std::min(chunk, weight.n - column)},
                zeros, scales);
    }
  });
}

}  // namespace qcore
