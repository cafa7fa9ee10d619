/* What a Cortex-M4 or M55 does before main: its vectors, the unit for floating point and MVE, then the C library's
   start. */

#include <stdint.h>

extern uint32_t stack_top;
extern void _start(void);

void reset(void) {
  *(volatile uint32_t*)0xe000ed88 |= 0xfu << 20; /* CPACR: full access to that unit */
  __asm volatile("dsb\n isb");
  _start();
}

static void fault(void) {
  for (;;) {
  }
}

__attribute__((section(".vectors"), used)) static const struct {
  uint32_t* stack;
  void (*handlers[6])(void);
} vectors = {&stack_top, {reset, fault, fault, fault, fault, fault}};
