/* The exported headers as a firmware would take them in, for the sizes of code and constants. */

#include "gru.h"
#include "silu.h"

void model_start(gru_state* state) { gru_start(state); }
void model_step(gru_state* state, const gru_x* x, gru_h* y) { gru_step(state, x, y); }
float model_silu(float x) { return silu(x); }
