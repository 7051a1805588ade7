// Runs one kernel of faults.cu on so many blocks, with exactly as much memory as it may use: program KERNEL BLOCKS THREADS SHARED WORDS FAULT.
#include "faults.cu"
#include "launch.h"

#include <cstdio>
#include <cstdlib>

SHIM_KERNEL(fault_no_barrier, 64)
SHIM_KERNEL(fault_no_second_barrier, 64)
SHIM_KERNEL(fault_copy_no_barrier, 64)
SHIM_KERNEL(fault_shuffle_no_order, 32)
SHIM_KERNEL(fault_blocks, 32)
SHIM_KERNEL(fault_no_fence, 32)
SHIM_KERNEL(fault_bounds, 32)
SHIM_KERNEL(fault_shared, 32)
SHIM_KERNEL(fault_copy_outside, 32)

int main(int, char** arguments) {
  const u32 blocks = (u32)atoi(arguments[2]), threads = (u32)atoi(arguments[3]), shared = (u32)atoi(arguments[4]), words = (u32)atoi(arguments[5]);
  u32* out = static_cast<u32*>(calloc(words, 4));
  const char* why = shim::run(arguments[1], blocks, threads, shared, out, (u32)atoi(arguments[6]));
  if (why) printf("failed: %s\n", why);
  free(out);
  return why != nullptr;
}
