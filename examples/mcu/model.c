/* The exported headers as a firmware would take them in, for the sizes of code and constants. */

#include "gru.h"
#include "lstm.h"
#include "silu.h"

void model_start(gru_state* state) { gru_start(state); }
void model_step(gru_state* state, const gru_x* x, gru_h* y) { gru_step(state, x, y); }
void lstm_model_start(lstm_state* state) { lstm_start(state); }
void lstm_model_step(lstm_state* state, const lstm_x* x, lstm_h* y) { lstm_step(state, x, y); }
float model_silu(float x) { return silu(x); }
