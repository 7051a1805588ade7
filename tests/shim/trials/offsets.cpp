// Offsets of elements above 2^32 in kernels that work on rows, pairs and weights: the block of a large grid that has them runs alone,
// on memory of which only the pages that it touches exist.
#include "dev.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "launch.h"

// Each file has names of its own for its sizes.
#include "adamw.cu"
#undef INSTANCE
#undef N
#undef PACKS
#include "cast.cu"
#undef INSTANCE
#undef PACKS
#include "combine.cu"
#undef N
#undef PACKS
#undef SLOTS
#include "gather_rows.cu"
#undef INSTANCE
#undef PACKS
#include "gather_scaled.cu"
#undef INSTANCE
#undef PACKS
#include "permute_count.cu"
#undef STEPS
#include "permute_move.cu"
#undef STEPS
#include "permute_segments.cu"
#undef COUNTS
#include "row_dots.cu"
#undef INSTANCE
#undef PACKS
#include "row_norms.cu"
#undef INSTANCE
#undef PACKS
#include "sum_squares.cu"
#undef ELEMENTS
#undef N
#undef PACKS
#include "swiglu.cu"
#undef N
#undef PACKS
#include "swiglu_backward.cu"
#undef N
#include "row_keys.cu"
#undef INSTANCE
#undef LANES
#undef ROWS
#undef GROUPS
#undef BITS
#undef COLUMNS
#undef STRIDE

typedef std::function<void()> Body;

// The body, as one block of many.
#define FAR(threads)                                                       \
  KERNEL(threads) far_##threads(const Body* body, u32 block, u32 blocks) { \
    blockIdx.x = block;                                                    \
    gridDim.x = blocks;                                                    \
    (*body)();                                                             \
  }                                                                        \
  SHIM_KERNEL(far_##threads, threads)
FAR(32)
FAR(128)
FAR(256)

static const char* running = "";

static void check(bool right, const char* what, u64 at) {
  if (right) return;
  printf("%s: %s is wrong at %llu\n", running, what, at);
  exit(1);
}

static void run(const char* kernel, const char* name, u32 threads, u64 block, u64 blocks, u32 shared, Body body) {
  running = name;
  check(block < blocks && blocks < 1u << 31, "the block", block);
  const char* why = shim::run(kernel, 1, threads, shared, (const Body*)&body, (u32)block, (u32)blocks);
  if (!why) return;
  printf("%s: %s\n", name, why);
  exit(1);
}

// Elements that exist where they are touched.
template <class T>
struct Sparse {
  T* p;
  u64 bytes;
  explicit Sparse(u64 elements) : bytes(elements * sizeof(T)) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      perror("mmap");
      exit(1);
    }
    p = static_cast<T*>(memory);
  }
  ~Sparse() { munmap(p, bytes); }
  // Values that tell elements apart.
  void mark(u64 first, u64 count) {
    for (u64 i = 0; i < count; i++) p[first + i] = from_f32<T>(value(i));
  }
  static f32 value(u64 i) { return (f32)(i % 61) - 30.0f; }
};

static const u64 COLS = 7168;
static const u64 ROWS = 700001;
static const u64 ROW = ROWS - 1;
static const u64 FROM = 650000;
static_assert(FROM * COLS > 1ull << 32, "an offset that 32 bits do not hold");

// The block of a span of a row, and all blocks, where a warp has `width` columns.
static u64 span_block(u64 row, u64 span, u64 width) { return (row * ((COLS + width - 1) / width) + span) / 8; }
static u64 span_blocks(u64 width) { return (ROWS * ((COLS + width - 1) / width) + 7) / 8; }

template <class T>
static void gather(const char* name) {
  Sparse<T> src(ROWS * COLS), dst(ROWS * COLS);
  Sparse<u32> index(ROWS);
  u32 offsets[2] = {(u32)ROW, (u32)ROWS};
  src.mark(FROM * COLS, COLS);
  index.p[ROW] = 3 * FROM + 1;
  u64 width = 32 * 4 * (16 / sizeof(T));
  u32 spans = (u32)((COLS + width - 1) / width);
  for (u64 s = 0; s < spans; s++) {
    run("far_256", name, 256, span_block(ROW, s, width), span_blocks(width), 0, [&] {
      gather_rows<T>(src.p, index.p, offsets, dst.p, ROWS, ROWS, COLS, 3, 1, spans, 32);
    });
  }
  for (u64 c = 0; c < COLS; c++) check(to_f32(dst.p[ROW * COLS + c]) == src.value(c), "dst", c);
}

template <class T>
static void scaled(const char* name) {
  Sparse<T> src(ROWS * COLS);
  Sparse<f32> dst(ROWS * COLS), scale(ROWS);
  Sparse<u32> index(ROWS);
  u32 offsets[2] = {(u32)ROW, (u32)ROWS};
  src.mark(FROM * COLS, COLS);
  index.p[ROW] = FROM;
  scale.p[ROW] = 0.5f;
  u64 width = 32 * 4 * 4;
  u32 spans = (u32)((COLS + width - 1) / width);
  for (u64 s = 0; s < spans; s++) {
    run("far_256", name, 256, span_block(ROW, s, width), span_blocks(width), 0, [&] {
      gather_scaled<T>(src.p, index.p, scale.p, offsets, dst.p, ROWS, ROWS, COLS, 1, 1, spans, 32);
    });
  }
  for (u64 c = 0; c < COLS; c++) check(dst.p[ROW * COLS + c] == 0.5f * src.value(c), "dst", c);
}

static void combine_far() {
  Sparse<f32> rows(ROWS * COLS), out(ROWS * COLS), weights(2 * ROWS);
  Sparse<u32> row_of_pair(2 * ROWS);
  rows.mark(FROM * COLS, COLS);
  rows.mark(ROW * COLS, COLS);
  row_of_pair.p[2 * ROW] = FROM;
  row_of_pair.p[2 * ROW + 1] = ROW;
  weights.p[2 * ROW] = 2.0f;
  weights.p[2 * ROW + 1] = 0.5f;
  u64 width = 32 * 2 * 4;
  u32 spans = (u32)((COLS + width - 1) / width);
  for (u64 s = 0; s < spans; s++) {
    run("far_256", "combine", 256, span_block(ROW, s, width), span_blocks(width), 0, [&] {
      combine(rows.p, row_of_pair.p, weights.p, out.p, ROWS, COLS, ROWS, 2, 0, spans, 32);
    });
  }
  for (u64 c = 0; c < COLS; c++) check(out.p[ROW * COLS + c] == 2.5f * rows.value(c), "out", c);
}

template <class T>
static void sums(const char* norms, const char* dots) {
  Sparse<T> x(ROWS * COLS), y(ROWS * COLS);
  Sparse<f32> out(ROWS);
  Sparse<u32> index(ROWS);
  x.mark(ROW * COLS, COLS);
  y.mark(FROM * COLS, COLS);
  index.p[ROW] = FROM;
  f64 want = 0;
  for (u64 c = 0; c < COLS; c++) want += (f64)x.value(c) * x.value(c);
  run("far_256", norms, 256, ROW / 8, (ROWS + 7) / 8, 64, [&] { row_norms<T>(x.p, out.p, ROWS, COLS, 32); });
  check(out.p[ROW] == (f32)sqrt(want), "norm", ROW);
  run("far_256", dots, 256, ROW, ROWS, 64, [&] { row_dots<T, T>(x.p, y.p, index.p, out.p, ROWS, COLS, ROWS, 1, 256); });
  check(out.p[ROW] == (f32)want, "dot", ROW);
}

static void keys() {
  Sparse<bf16> x(ROWS * COLS);
  Sparse<u32> key(ROWS);
  x.mark(ROW * COLS, COLS);
  run("far_32", "row_keys", 32, ROW / 32, (ROWS + 31) / 32, 32 * 38 * 4, [&] { row_keys<bf16>(x.p, key.p, ROWS, COLS); });
  u32 far = key.p[ROW];
  x.mark(0, COLS);
  run("far_32", "row_keys", 32, 0, 1, 32 * 38 * 4, [&] { row_keys<bf16>(x.p, key.p, 1, COLS); });
  check(far == key.p[0] && far != 0, "key", ROW);
}

static void swiglu_far() {
  Sparse<f32> ab(ROWS * 2 * COLS), h(ROWS * COLS), u(ROWS * COLS), d_ab(ROWS * 2 * COLS), norm(ROWS), dot(ROWS), scale(ROWS);
  Sparse<u32> index(ROWS);
  u32 offsets[2] = {0, (u32)ROWS};
  auto small = [](u64 i) { return (f32)(i % 7) - 3.0f; };
  for (u64 c = 0; c < COLS; c++) {
    ab.p[(2 * ROW) * COLS + c] = ab.p[(2 * FROM) * COLS + c] = small(c);
    ab.p[(2 * ROW + 1) * COLS + c] = ab.p[(2 * FROM + 1) * COLS + c] = 2.0f;
    u.p[ROW * COLS + c] = 1.0f;
  }
  run("far_256", "swiglu", 256, ROW / 8, (ROWS + 7) / 8, 64, [&] { swiglu(ab.p, offsets, h.p, norm.p, ROWS, COLS, 1, 32); });
  f64 squares = 0, sum = 0;
  for (u64 c = 0; c < COLS; c++) {
    f32 want = swiglu_of(small(c), 2.0f);
    check(h.p[ROW * COLS + c] == want, "h", c);
    h.p[ROW * COLS + c] = 0.0f;
    squares += (f64)want * want;
    sum += want;
  }
  check(fabs(norm.p[ROW] - sqrt(squares)) < 1e-4, "norm", ROW);
  index.p[ROW] = FROM;
  scale.p[ROW] = 3.0f;
  run("far_256", "swiglu_backward", 256, ROW / 8, (ROWS + 7) / 8, 64, [&] {
    swiglu_backward(ab.p, index.p, u.p, scale.p, offsets, d_ab.p, h.p, dot.p, ROWS, ROWS, COLS, 1, 32);
  });
  for (u64 c = 0; c < COLS; c++) {
    SwigluBackward want = swiglu_backward_of(small(c), 2.0f, 3.0f);
    check(h.p[ROW * COLS + c] == want.h, "h", c);
    check(d_ab.p[2 * ROW * COLS + c] == want.da, "da", c);
    check(d_ab.p[(2 * ROW + 1) * COLS + c] == want.db, "db", c);
  }
  check(fabs(dot.p[ROW] - sum) < 1e-2, "dot", ROW);
}

static const u64 LEN = 5000000000 + 7;
static const u64 AT = 4999999000;

static void elements() {
  Sparse<f32> x(LEN), m(LEN), v(LEN), w(LEN), partial(2 * (LEN / 4096 + 1));
  Sparse<bf16> half(LEN);
  x.mark(AT, LEN - AT);
  for (u64 block : {AT / 4096, LEN / 4096})
    run("far_256", "cast", 256, block, LEN / 4096 + 1, 0, [&] { cast<f32, bf16>(x.p, half.p, LEN); });
  // Elements behind the last pack are the first block's.
  run("far_256", "cast", 256, 0, LEN / 4096 + 1, 0, [&] { cast<f32, bf16>(x.p, half.p, LEN); });
  for (u64 i = AT; i < LEN; i++) check(to_f32(half.p[i]) == x.value(i - AT), "dst", i);
  Step step{1.0f, 0.5f, 0.5f, 0.5f, 0.5f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f};
  for (u64 block : {(u64)0, AT / 2048, LEN / 2048})
    run("far_256", "adamw", 256, block, LEN / 2048 + 1, 0, [&] { adamw<bf16>(x.p, half.p, w.p, m.p, v.p, LEN, step); });
  for (u64 i = AT; i < LEN; i++) {
    check(m.p[i] == 0.5f * x.value(i - AT), "m", i);
    check(to_f32(half.p[i]) == 0.0f, "weight", i);
  }
  for (u64 block : {AT / 4096, LEN / 4096})
    run("far_256", "sum_squares", 256, block, LEN / 4096 + 1, 96, [&] { sum_squares(x.p, partial.p, LEN); });
  f64 sum = 0;
  for (u64 i = AT; i < LEN; i++) sum += (f64)x.value(i - AT) * x.value(i - AT) / 900.0;
  f64 got = partial.p[2 * (LEN / 4096) + 1] + (AT / 4096 == LEN / 4096 ? 0.0 : partial.p[2 * (AT / 4096) + 1]);
  check(fabs(got - sum) < 1e-3, "sum", LEN);
}

static void permute() {
  const u64 pairs = 4100000000;
  const u32 experts = 300000, length = 1 << 18, last = experts - 1;
  const u32 segments = (u32)((pairs + length - 1) / length);
  static_assert(299999ull * 15640 > 1ull << 32, "a cell that 32 bits do not hold");
  Sparse<u32> ids(pairs), table((u64)experts * segments), counts(experts), offsets(experts + 1), pair_of_row(pairs), row_of_pair(pairs);
  for (u64 pair = pairs - 5; pair < pairs; pair++) ids.p[pair] = last;
  u64 block = (segments - 1) / 4, blocks = (segments + 3) / 4;
  run("far_128", "permute_count", 128, block, blocks, 0, [&] { permute_count(ids.p, table.p, pairs, experts, length, segments); });
  u64 cell = (u64)last * segments + segments - 1;
  check(table.p[cell] == 5, "count", cell);
  // One that is in front of them.
  table.p[cell - 1] = 1;
  run("far_256", "permute_segments", 256, last, experts, 32, [&] { permute_segments(table.p, counts.p, experts, segments); });
  check(counts.p[last] == 6 && table.p[cell] == 1, "sum", cell);
  offsets.p[last] = (u32)(pairs - 6);
  run("far_128", "permute_move", 128, block, blocks, 0, [&] {
    permute_move(ids.p, table.p, offsets.p, pair_of_row.p, row_of_pair.p, pairs, experts, length, segments);
  });
  for (u64 pair = pairs - 5; pair < pairs; pair++) {
    check(row_of_pair.p[pair] == pair, "row_of_pair", pair);
    check(pair_of_row.p[pair] == pair, "pair_of_row", pair);
  }
}

int main() {
  gather<f32>("gather_rows_f32");
  gather<bf16>("gather_rows_bf16");
  scaled<f32>("gather_scaled_f32");
  scaled<f16>("gather_scaled_f16");
  combine_far();
  sums<f32>("row_norms_f32", "row_dots_f32_f32");
  sums<bf16>("row_norms_bf16", "row_dots_bf16_bf16");
  keys();
  swiglu_far();
  elements();
  permute();
  puts("every offset is right");
}
