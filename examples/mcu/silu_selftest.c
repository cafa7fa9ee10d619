/* The exported table against the library's results, which silu_expected.h has as bits. */

#include <stdio.h>

#include "silu.h"
#include "silu_expected.h"

int main(void) {
  const int count = (int)(sizeof silu_inputs / sizeof *silu_inputs);
  int i;
  for (i = 0; i < count; ++i) {
    float x, y;
    uint32_t bits;
    memcpy(&x, &silu_inputs[i], sizeof x);
    y = silu(x);
    memcpy(&bits, &y, sizeof bits);
    if (bits != silu_outputs[i]) {
      printf("silu: differs at input %d: got %08lx, expected %08lx\n", i, (unsigned long)bits,
             (unsigned long)silu_outputs[i]);
      return 1;
    }
  }
  printf("silu: %d results have the library's bits\n", count);
  return 0;
}
