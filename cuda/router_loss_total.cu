// Sums over the chunks of router_loss, one warp per column.
#include "dev.h"
#include "lib_warp.h"

KERNEL(128) router_loss_total(const f64* partial, f32* sums, u64 chunks, u64 columns) {
  u64 column = blockIdx.x * 4ull + warp_id();
  if (column >= columns) return;
  f64 sum = 0.0;
  for (u64 chunk = lane_id(); chunk < chunks; chunk += 32) sum += partial[at(chunk, columns, column)];
  sum = warp_sum(sum);
  if (lane_id() == 0) sums[column] = (f32)sum;
}
