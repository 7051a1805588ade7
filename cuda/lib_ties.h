// Rows whose key is that of the last one retained. Needs lib_warp.
#pragma once

// Appends rows of a warp to a list of the expert, in any order: what is retained of them depends on their places alone.
DEV void append(u32* list, u32* length, bool appended, u32 row) {
  u32 lanes = __ballot_sync(FULL_WARP, appended);
  if (lanes == 0) return;
  u32 first = 0;
  if (lane_id() == 0) first = atomicAdd(length, (u32)__popc(lanes));
  first = __shfl_sync(FULL_WARP, first, 0);
  if (appended) list[first + __popc(lanes & ((1u << lane_id()) - 1))] = row;
}
