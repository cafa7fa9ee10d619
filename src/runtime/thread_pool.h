#pragma once

#include <cstdint>

namespace qcore {

// Calls run(context, task) once for each task in [0, tasks), on up to get_num_threads() threads, the calling one
// included. A call from inside a task, or while another thread uses the pool, runs on the calling thread alone, so
// results must not depend on which thread runs a task. An exception of a task ends the call: tasks not yet begun are
// left out, and the first exception is thrown to the caller.
void parallel_for(std::int64_t tasks, void (*run)(void* context, std::int64_t task), void* context);

template <class Task>
void parallel_for(std::int64_t tasks, const Task& task) {
  parallel_for(
      tasks, [](void* context, std::int64_t index) { (*static_cast<const Task*>(context))(index); },
      const_cast<Task*>(&task));
}

}  // namespace qcore
