/* Counts the instructions of a step in qemu with -icount shift=0: there an instruction takes a nanosecond, and SysTick
   ticks 25 or 32 times in a microsecond, by the board. export.py gives the names of an exported header as macros. */

#include HEADER

#include <stdio.h>

#define SYSTICK_CONTROL (*(volatile uint32_t*)0xE000E010)
#define SYSTICK_RELOAD (*(volatile uint32_t*)0xE000E014)
#define SYSTICK_VALUE (*(volatile uint32_t*)0xE000E018)
#define SYSTICK_BITS 0xFFFFFFu
#define STEPS 100

int main(void) {
  static STATE state;
  static X x[INPUTS];
  static H y[OUTPUTS];
  uint32_t before, after;
  uint64_t ticks;
  int i;
  for (i = 0; i < INPUTS; ++i) x[i] = (X)(i * 37 % 101 - 50);
  START(&state);
  SYSTICK_RELOAD = SYSTICK_BITS;
  SYSTICK_VALUE = 0;
  SYSTICK_CONTROL = 5; /* enabled, by the processor's clock */
  before = SYSTICK_VALUE;
  for (i = 0; i < STEPS; ++i) STEP(&state, x, y);
  after = SYSTICK_VALUE;
  ticks = (before - after) & SYSTICK_BITS;
  printf("%lu\n", (unsigned long)(ticks * 1000 / TICKS_PER_MICROSECOND / STEPS));
  return 0;
}
