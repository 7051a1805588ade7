// What checks leave for the host: flags, and a value for each. It is host memory, and every access crosses the bus. Needs lib_warp.
#pragma once

// Sets a flag where a lane of the warp has found something, and the largest of the values that they have found. All lanes of the warp.
DEV void report(u32* faults, u32 flag, bool found, u32 place, u32 value) {
  if (!__any_sync(FULL_WARP, found)) return;
  value = __reduce_max_sync(FULL_WARP, found ? value : 0);
  if (lane_id() != 0) return;
  atomicOr(faults, flag);
  atomicMax(faults + place, value);
}
