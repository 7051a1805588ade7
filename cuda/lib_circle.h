// Lengths of a list laid end to end on a circle of the sum of the sizes. Needs lib_warp, lib_wide and lib_plan.
#pragma once

#define ENTRIES (SEGMENT / SEGMENT_THREADS)

// 0 for rows that are not drawn.
DEV U128 length_of(const Plan& plan, u32 score) {
  bool drawn = is_eligible(score) && score < plan.from;
  return drawn ? product(size_of(score, plan.largest), plan.slots) : wide(0);
}

// Sum of this thread's and all lower ones, on the circle; `parts` holds one number for each warp.
DEV U128 scan_around(U128 own, U128 sum, U128* parts) {
  for (u32 apart = 1; apart < 32; apart <<= 1) {
    U128 other = shuffle_up(own, apart);
    if (lane_id() >= apart) own = add_around(own, other, sum);
  }
  if (lane_id() == 31) parts[warp_id()] = own;
  __syncthreads();
  for (u32 warp = 0; warp < warp_id(); warp++) own = add_around(own, parts[warp], sum);
  return own;
}
