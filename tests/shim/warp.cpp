// What the lanes of a warp do together: they meet, and the last to come works out everybody's result.
#include "engine.h"

namespace shim {

namespace {

const char* const NAMES[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync",    "__any_sync",
                             "__all_sync",        "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
                             "mma (bf16)",        "mma (f16)",         "ldmatrix_x4",       "ldmatrix_x4_trans"};

const char* name_of(Collective what) { return NAMES[(u32)what]; }

// `.aligned` instructions: the whole warp is in the same one.
bool aligned(Collective what) { return what >= Collective::mma_bf16; }

// The lane whose value a lane gets; its own where that lies outside its segment.
u32 source(Collective what, u32 lane, u32 argument, u32 width) {
  const u32 first = lane & ~(width - 1);
  switch (what) {
    case Collective::shuffle: return first | (argument & (width - 1));
    case Collective::up: return lane - first >= argument ? lane - argument : lane;
    case Collective::down: return argument < width && lane - first + argument < width ? lane + argument : lane;
    default: {
      // Lanes of later segments are out of reach, those of earlier ones are not.
      const u32 other = lane ^ argument;
      return other < first + width && other < LANES ? other : lane;
    }
  }
}

f32 float_of(u32 pair, u32 half, bool is_bf16) {
  const u16 bits = (u16)(pair >> 16 * half);
  return of_bits<f32>(is_bf16 ? (u32)bits << 16 : half_to_float_bits(bits));
}

// As the PTX manual lays out the fragments of m16n8k16 for 16-bit operands: groups of four lanes hold rows, the lane's place in its
// group says which columns.
void multiply(Thread* lanes, bool is_bf16) {
  f32 a[16][16], b[16][8], c[16][8];
  for (u32 lane = 0; lane < LANES; lane++) {
    const Mma& m = *reinterpret_cast<const Mma*>(lanes[lane].value);
    const u32 group = lane / 4, place = lane % 4;
    for (u32 i = 0; i < 8; i++) {
      const u32 row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const u32 col = place * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      a[row][col] = float_of(m.a[i / 2], i & 1, is_bf16);
    }
    for (u32 i = 0; i < 4; i++) {
      const u32 row = place * 2 + (i & 1) + (i >= 2 ? 8 : 0);
      b[row][group] = float_of(m.b[i / 2], i & 1, is_bf16);
    }
  }
  memset(c, 0, sizeof c);
  for (u32 k = 0; k < 16; k++)
    for (u32 i = 0; i < 16; i++)
      for (u32 j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
  for (u32 lane = 0; lane < LANES; lane++) {
    const Mma& m = *reinterpret_cast<const Mma*>(lanes[lane].value);
    const u32 group = lane / 4, place = lane % 4;
    for (u32 i = 0; i < 4; i++) m.d[i] += c[i < 2 ? group : group + 8][place * 2 + (i & 1)];
  }
}

// Lane l's register i: elements 2 (l % 4) and the next of row l / 4 of matrix i, or, transposed, of column l / 4.
void load_matrices(Worker& w, Thread* lanes, bool transposed, Site at) {
  u16 matrix[4][8][8];
  for (u32 lane = 0; lane < LANES; lane++) {
    const void* row = reinterpret_cast<const Ldmatrix*>(lanes[lane].value)->row;
    if ((u64)row % 16) fail(at, "ldmatrix: the address that lane %u gives, %p, is not 16-byte aligned", lane, row);
    if (!in_shared(w, row, 16)) fail(at, "ldmatrix: the address that lane %u gives, %p, is not in shared memory", lane, row);
    memcpy(matrix[lane / 8][lane % 8], row, 16);
  }
  for (u32 lane = 0; lane < LANES; lane++) {
    u32* r = reinterpret_cast<const Ldmatrix*>(lanes[lane].value)->r;
    const u32 row = lane / 4, col = lane % 4 * 2;
    for (u32 i = 0; i < 4; i++)
      r[i] = transposed ? matrix[i][col][row] | (u32)matrix[i][col + 1][row] << 16 : matrix[i][row][col] | (u32)matrix[i][row][col + 1] << 16;
  }
}

void complete(Worker& w, u32 warp, const Meeting& m) {
  Thread* lanes = &w.thread[warp * LANES];
  const u32 present = m.arrived;
  if (aligned(m.what)) {
    if (present != FULL_WARP) fail(m.at, "%s: only lanes %08x of the warp are left", name_of(m.what), present);
    if (m.what == Collective::ldmatrix || m.what == Collective::ldmatrix_trans)
      load_matrices(w, lanes, m.what == Collective::ldmatrix_trans, m.at);
    else
      multiply(lanes, m.what == Collective::mma_bf16);
    return;
  }
  u64 all = 0;
  bool first = true;
  for (u32 lane = 0; lane < LANES; lane++) {
    if (!(present >> lane & 1)) continue;
    const u64 v = lanes[lane].value;
    const u32 x = (u32)all, y = (u32)v;
    switch (m.what) {
      case Collective::ballot:
      case Collective::any:
      case Collective::all: all |= v << lane; break;
      case Collective::add: all = x + y; break;
      case Collective::min: all = first || y < x ? y : x; break;
      case Collective::max: all = first || y > x ? y : x; break;
      case Collective::and_: all = first ? y : x & y; break;
      case Collective::or_: all = x | y; break;
      default: break;
    }
    first = false;
  }
  if (m.what == Collective::any) all = all != 0;
  if (m.what == Collective::all) all = all == present;
  for (u32 lane = 0; lane < LANES; lane++) {
    if (!(present >> lane & 1)) continue;
    Thread& t = lanes[lane];
    t.result = all;
    if (m.what >= Collective::shuffle && m.what <= Collective::xor_) {
      const u32 from = source(m.what, lane, t.argument, t.width);
      // What a lane outside the mask, or one that has ended, would give is undefined.
      t.result = present >> from & 1 ? lanes[from].value : ~0ull;
    } else if (m.what == Collective::match) {
      t.result = 0;
      for (u32 other = 0; other < LANES; other++)
        if ((present >> other & 1) && lanes[other].value == t.value) t.result |= 1u << other;
    }
  }
}

void wake_all(Worker& w, u32 warp, const Meeting& m, u32 but) {
  for (u32 lane = 0; lane < LANES; lane++)
    if ((m.arrived & ~but) >> lane & 1) w.wake(&w.thread[warp * LANES + lane]);
}

// The meeting of these lanes, or a new one.
Meeting& find_meeting(Warp& warp, Collective what, u32 mask, u32 lane, Site at) {
  Meeting* empty = nullptr;
  for (u32 i = 0; i < MEETINGS; i++) {
    Meeting& m = warp.meeting[i];
    if (!(warp.used >> i & 1)) {
      if (!empty) empty = &m;
    } else if (m.mask == mask) {
      if (m.what != what || (aligned(what) && !(m.at == at)))
        fail(at, "lanes %08x wait in %s at line %d, and lane %u comes to %s", m.arrived, name_of(m.what), m.at.line, lane, name_of(what));
      return m;
    } else if (m.mask >> lane & 1) {
      fail(at, "%s: lane %u names the lanes %08x, but others wait for it with %08x at line %d", name_of(what), lane, mask, m.mask, m.at.line);
    }
  }
  if (!empty) fail(at, "%s: more than %u groups of lanes wait in one warp", name_of(what), MEETINGS);
  warp.used |= 1u << (empty - warp.meeting);
  empty->mask = mask;
  empty->arrived = 0;
  empty->number++;
  empty->what = what;
  empty->at = at;
  return *empty;
}

}  // namespace

u64 collective(Collective what, u32 mask, u64 value, u32 argument, u32 width, Site at) {
  Worker& w = *worker;
  Thread& me = *w.current;
  const u32 lane = me.index % LANES, number = me.index / LANES;
  Warp& warp = w.warp[number];
  if (!(mask >> lane & 1)) fail(at, "%s: lane %u is not in its own mask %08x", name_of(what), lane, mask);
  if (!width || width > LANES || (width & (width - 1))) fail(at, "%s: a width of %u", name_of(what), width);
  Meeting& m = find_meeting(warp, what, mask, lane, at);
  me.value = value;
  me.argument = argument;
  me.width = width;
  m.arrived |= 1u << lane;
  // Of these only __syncwarp orders memory.
  TSAN(char* order = &m.order[m.number & 1]; if (what == Collective::sync) __tsan_release(order));
  if (m.arrived == (mask & warp.alive)) {
    complete(w, number, m);
    const bool yields = w.options.schedule == Options::random;
    wake_all(w, number, m, yields ? 0 : 1u << lane);
    warp.used &= ~(1u << (&m - warp.meeting));
    if (yields) w.wait(name_of(what), at);
  } else {
    w.wait(name_of(what), at);
  }
  TSAN(if (what == Collective::sync) __tsan_acquire(order));
  return me.result;
}

void lane_ended(Worker& w, u32 number) {
  Warp& warp = w.warp[number];
  for (u32 i = 0; i < MEETINGS; i++) {
    if (!(warp.used >> i & 1)) continue;
    Meeting& m = warp.meeting[i];
    if (!m.arrived || m.arrived != (m.mask & warp.alive)) continue;
    complete(w, number, m);
    wake_all(w, number, m, 0);
    warp.used &= ~(1u << i);
  }
}

// ---- f16

u32 half_to_float_bits(u16 half) {
  const u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
  if (exponent) return sign | (exponent + 112) << 23 | fraction << 13;
  return sign | (u32)bits_of((f32)fraction * 0x1p-24f);
}

// To nearest even; every NaN becomes 0x7fff, as cvt makes it.
u16 float_bits_to_half(u32 bits) {
  const u16 sign = (u16)(bits >> 16 & 0x8000);
  const u32 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // Subnormal: the adder rounds to multiples of 2^-24.
    const f32 shifted = of_bits<f32>(magnitude) + 0.5f;
    return sign | (u16)(bits_of(shifted) - 0x3f000000);
  }
  return sign | (u16)((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

}  // namespace shim
