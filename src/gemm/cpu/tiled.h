#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gemm/cpu/expert_pieces.h"
#include "gemm/cpu/window_rows.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// The driver of tiles on the CPU, for the products of linear, grouped_linear, conv2d and static.
namespace qcore {

// With fewer multiply-adds, or elements to pack, a call is over before a second thread has woken up.
constexpr std::int64_t kSerialProducts = 1 << 18, kSerialElements = 1 << 14;

// Runs task(0) to task(tasks - 1), on the thread pool if `parallel`.
template <class Task>
void for_each_task(std::int64_t tasks, bool parallel, const Task& task) {
  if (parallel && tasks > 1)
    parallel_for(tasks, task);
  else
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
}

// Spreads rows evenly at the end: with max_rows 6 the last 7 become tiles of 4 and 3, not of 6 and 1.
inline std::int64_t rows_of_tile(std::int64_t left, std::int64_t max_rows) {
  return left <= max_rows ? left : left >= 2 * max_rows ? max_rows : (left + 1) / 2;
}

// Some panels of a weight, and the channels of y that they compute.
struct TileColumn {
  std::int64_t group, panel, panels;
  std::int64_t channel, channels;  // rows of the weight, from lane `skipped` of the first panel on
  std::int64_t skipped;
};

// How a product is cut into tasks: rows and columns in so many parts. Parts of rows have `rows` each or, if that is 0,
// whole tiles.
struct TileTasks {
  std::int64_t row_parts, column_parts, rows;
  bool parallel;
};

// Memory of a task. A task with a single row may take less than a microsecond, of which scratch memory would be a
// tenth.
class TaskMemory {
 public:
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = round_up(count * static_cast<std::int64_t>(sizeof(T)), kAlignment);
    if (!scratch_ && used_ + bytes <= kFewBytes) {
      used_ += bytes;
      return reinterpret_cast<T*>(few_ + used_ - bytes);
    }
    if (!scratch_) scratch_.emplace();
    return scratch_->take<T>(count);
  }

  // The same memory at every call within a task for one of two purposes; `count` must be the same too.
  template <class T>
  T* take_once(int purpose, std::int64_t count) {
    if (!once_[purpose]) once_[purpose] = take<T>(count);
    return static_cast<T*>(once_[purpose]);
  }

 private:
  void* once_[2] = {};
  static constexpr std::int64_t kFewBytes = 1024;
  alignas(kAlignment) char few_[kFewBytes];
  std::int64_t used_ = 0;
  std::optional<Scratch> scratch_;
};

// Computes rows x columns of a product by tiles of up to max_rows rows. Product has
//   window()                    what the results see of x
//   results(), columns()        rows of y, and TileColumns
//   column(index)               one of them, which may be empty
//   arguments(column)           what its tiles take beside their place
//   in_place(column)            null, or where tiles may store the first row's results, y_step() from row to row
//   multiply(arguments, tiles, walk, memory)
//                               calls walk(visit), which calls visit(tile) for one tile after the other, once or
//                               several times; `tiles` of them
//   store(column, begin, end, results, row_length)
//                               brings results of rows that are not in place there
//   end_task()                  called by a thread after its tiles
template <class Product>
class TileDriver {
 public:
  TileDriver(const Product& product, const TileTasks& tasks, std::int64_t max_rows, std::int64_t max_panels)
      : product_(product), tasks_(tasks), max_rows_(max_rows), max_panels_(max_panels) {}

  void run(const std::vector<TilePiece>& pieces) const {
    for_each_task(static_cast<std::int64_t>(pieces.size()), tasks_.parallel, [&](std::int64_t task) {
      const TilePiece& piece = pieces[static_cast<std::size_t>(task)];
      multiply(piece.begin, piece.end, piece.first_column, piece.end_column);
    });
  }

  void run() const {
    const std::int64_t columns = product_.columns();
    for_each_task(tasks_.row_parts * tasks_.column_parts, tasks_.parallel, [&](std::int64_t task) {
      const std::int64_t part = task / tasks_.row_parts, row_part = task % tasks_.row_parts;
      multiply(first_row(row_part), first_row(row_part + 1), part * columns / tasks_.column_parts,
               (part + 1) * columns / tasks_.column_parts);
    });
  }

 private:
  using Result = typename Product::Result;

  std::int64_t first_row(std::int64_t part) const {
    if (tasks_.rows) return std::min(product_.results(), part * tasks_.rows);
    const std::int64_t tiles = ceil_div(product_.results(), max_rows_);
    return part * tiles / tasks_.row_parts * product_.results() / tiles;
  }

  void multiply(std::int64_t begin, std::int64_t end, std::int64_t first_column, std::int64_t end_column) const {
    TaskMemory memory;
    const struct TaskEnd {
      const Product& product;
      ~TaskEnd() { product.end_task(); }
    } task_end{product_};
    const std::int64_t rows = end - begin;
    const WindowRows window = product_.window();
    auto** table = memory.take<const char*>(window.taps * rows);
    window.find(begin, end, table);
    Result* buffer = nullptr;
    for (std::int64_t index = first_column; index < end_column; ++index) {
      const TileColumn column = product_.column(index);
      if (column.panels <= 0) continue;
      const std::int64_t row_length = column.panels * PackedLayout::kPanelRows;
      Result* const in_place = product_.in_place(column);
      if (!in_place && !buffer) buffer = memory.take<Result>(rows * max_panels_ * PackedLayout::kPanelRows);
      auto t = product_.arguments(column);
      t.tap_stride = rows;
      t.panels = static_cast<int>(column.panels);
      t.out_stride = in_place ? product_.y_step() : row_length;
      Result* const out = in_place ? in_place + begin * t.out_stride : buffer;
      const auto walk = [&](const auto& visit) {
        std::int64_t tile = 0;
        for (std::int64_t at = begin; at < end; at += t.rows, ++tile) {
          t.rows = static_cast<int>(rows_of_tile(end - at, max_rows_));
          t.x = table + (at - begin);
          t.out = out + (at - begin) * t.out_stride;
          visit(tile);
        }
      };
      product_.multiply(t, ceil_div(rows, max_rows_), walk, memory);
      if (!in_place) product_.store(column, begin, end, buffer, row_length);
    }
  }

  const Product& product_;
  const TileTasks tasks_;
  const std::int64_t max_rows_, max_panels_;
};

}  // namespace qcore
