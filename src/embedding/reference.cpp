#include <algorithm>

#include "embedding/problem.h"
#include "formats/element.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_embedding_reference(const EmbeddingProblem& problem) {
  constexpr std::int64_t kTaskElements = 1 << 16;
  const PackedWeight& weight = problem.weight;
  const PackedLayout& layout = weight.layout;
  const BlockReader reader(weight);
  const std::int64_t together = std::max<std::int64_t>(1, kTaskElements / layout.k);
  parallel_for(ceil_div(problem.count, together), [&](std::int64_t task) {
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(layout.block_length(0));
    for (std::int64_t i = task * together; i < std::min(problem.count, (task + 1) * together); ++i) {
      const std::int64_t row = EmbeddingProblem::index(problem.indices, problem.wide_indices, i);
      std::int64_t at = problem.y.row_offset(i);
      for (std::int64_t p = 0; p < layout.blocks(); ++p) {
        const PackedWeight::BlockDecoder decoder = weight.decoder(row, p);
        reader.read(row, p, 0, codes);
        for (std::int64_t k = 0; k < layout.block_length(p); ++k, at += problem.y.column_stride)
          store_float(const_cast<void*>(problem.y.data), problem.y.dtype, at, decoder.value(codes[k]));
      }
    }
  });
}

}  // namespace qcore
