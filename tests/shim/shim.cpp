// The scheduler: a block's threads are fibers that take turns on one OS thread. A thread runs until it waits for others, at a barrier
// or in what a warp does together; the schedule says who is next. A thread that ends without having waited leaves its stack to the
// next one to start, so that blocks without barriers cost hardly more than a loop.
#include "engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "switch.h"

namespace shim {

__thread Now now;
__thread Worker* worker;

namespace {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr u32 STACKS_AT_ONCE = 32;
// Shared memory is poisoned with this, a NaN in every float type; around it lies what nobody may overwrite.
constexpr int POISON = 0xff;
constexpr int FENCE = 0xa5;
constexpr size_t FENCE_BYTES = 128;

#if defined(SHIM_TSAN)
// The sanitizer follows threads by their stacks, so each has its own; and neighbouring blocks have different ones, so that it
// tells thread 0 of one block from thread 0 of the next.
constexpr bool OWN_STACKS = true;
constexpr u32 STACK_SETS = 2;
#else
constexpr bool OWN_STACKS = false;
#endif

void fiber() { worker->run_fiber(); }

// Without its directory.
const char* file_of(Site at) {
  const char* slash = strrchr(at.file, '/');
  return slash ? slash + 1 : at.file;
}

}  // namespace

u64 next_random(u64& state) {
  state += 0x9e3779b97f4a7c15ull;
  u64 z = state;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

Worker::Worker() {
  for (u32 i = 0; i < MAX_THREADS; i++) {
    thread[i].index = i;
    thread[i].stack = nullptr;
    order_[i] = (u16)i;
  }
  TSAN(maker_tsan_ = __tsan_create_fiber(0));
}

// ---- Stacks

void Worker::make_stacks() {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), each = STACK_BYTES + page;
  void* all = mmap(nullptr, each * STACKS_AT_ONCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) {
    fprintf(stderr, "shim: no memory for stacks\n");
    abort();
  }
  for (u32 i = 0; i < STACKS_AT_ONCE; i++) {
    char* low = static_cast<char*>(all) + i * each;
    mprotect(low, page, PROT_NONE);
    Stack* s = new Stack;
    s->low = low + page;
    s->bytes = STACK_BYTES;
    s->number = (u32)stacks_.size();
    stacks_.push_back(s);
    free_.push_back(s);
  }
}

Stack* Worker::take_stack(u32 index) {
#if defined(SHIM_TSAN)
  const u32 want = set_ * MAX_THREADS + index;
  while (stacks_.size() <= want) make_stacks();
  Stack* s = stacks_[want];
#else
  (void)index;
  if (free_.empty()) make_stacks();
  Stack* s = free_.back();
  free_.pop_back();
#endif
  return s;
}

// ---- Turns

Thread* Worker::pick() {
  const u32 fresh = threads - started;
  if (!fresh && !ready_len) return nullptr;
  switch (options.schedule) {
    case Options::first_first:
      if (fresh) return &thread[started++];
      ready_len--;
      return ready[ready_head++ % MAX_THREADS];
    case Options::last_first:
      if (ready_len) return ready[(ready_head + --ready_len) % MAX_THREADS];
      return &thread[threads - ++started];
    default: {
      const u32 chosen = (u32)(next_random(random) % (ready_len + fresh));
      if (chosen < ready_len) {
        std::swap(ready[(ready_head + chosen) % MAX_THREADS], ready[(ready_head + ready_len - 1) % MAX_THREADS]);
        return ready[(ready_head + --ready_len) % MAX_THREADS];
      }
      std::swap(order_[started], order_[started + chosen - ready_len]);
      return &thread[order_[started++]];
    }
  }
}

void Worker::enter(Thread* t) {
  current = t;
  now.thread.x = t->index;
}

// Where many stacks begin at the same offset in a page, their tops share a few cache sets: they are staggered.
void Worker::start(Thread* t) {
  t->stack = take_stack(t->index);
  t->sp = prepare_stack(t->stack->low + t->stack->bytes - 64 * (t->stack->number * 7 % 61), fiber);
}

void Worker::switch_to(void** from, Thread* next, bool for_good) {
  if (!next->stack) start(next);
  enter(next);
  (void)for_good;
  TSAN(__tsan_switch_to_fiber(next->stack->tsan, 1));
  ASAN(void* fake; __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, next->stack->low, next->stack->bytes));
  shim_switch(from, next->sp);
  ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr));
}

void Worker::to_main() {
  void* never;
  TSAN(__tsan_switch_to_fiber(main_tsan_, 1));
  ASAN(__sanitizer_start_switch_fiber(nullptr, main_low_, main_bytes_));
  shim_switch(&never, main_sp_);
  abort();
}

void Worker::wake(Thread* t) {
  t->in = nullptr;
  ready[(ready_head + ready_len++) % MAX_THREADS] = t;
}

void Worker::wait(const char* in, Site at) {
  Thread* me = current;
  me->in = in;
  me->at = at;
  Thread* next = pick();
  if (!next) to_main();
  if (next == me) return;
  switch_to(&me->sp, next, false);
}

void Worker::run_fiber() {
#if defined(SHIM_ASAN)
  {
    const void* low;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
    if (from_main_) main_low_ = low, main_bytes_ = bytes;
    from_main_ = false;
  }
#endif
  for (;;) {
    Thread* me = current;
    me->done = false;
    me->in = nullptr;
    TSAN(__tsan_acquire(&launch_order_); __tsan_acquire(&born_order_));
    thunk(params);
    TSAN(__tsan_release(&ended_order_));
    ended(me);
    Thread* next = pick();
    Stack* mine = me->stack;
    me->stack = nullptr;
    if (next && !next->stack && !OWN_STACKS) {
      next->stack = mine;
      enter(next);
      continue;
    }
    if (!OWN_STACKS) free_.push_back(mine);
    if (!next) to_main();
    void* never;
    switch_to(&never, next, true);
  }
}

void Worker::ended(Thread* me) {
  me->done = true;
  alive--;
  if (!me->copies.empty()) drop_copies(*me);
  Warp& w = warp[me->index / LANES];
  w.alive &= ~(1u << me->index % LANES);
  if (w.used) lane_ended(*this, me->index / LANES);
  if (barrier_len && barrier_len == alive) release_barrier();
}

// ---- Barriers

void Worker::release_barrier() {
  for (u32 i = 0; i < barrier_len; i++) wake(at_barrier[i]);
  barrier_len = 0;
  barrier_number++;
}

void Worker::barrier(Site at) {
  if (!barrier_len)
    barrier_at = at;
  else if (!(barrier_at == at))
    shim::fail(at, "__syncthreads here, but thread %u waits in the one at %s:%d", at_barrier[0]->index, file_of(barrier_at), barrier_at.line);
  TSAN(char* order = &barrier_order_[barrier_number & 1]; __tsan_release(order));
  // The last one to come goes on at once, unless chance decides.
  if (barrier_len + 1 == alive && options.schedule != Options::random) {
    release_barrier();
  } else {
    at_barrier[barrier_len++] = current;
    if (barrier_len == alive) release_barrier();
    wait("__syncthreads", at);
  }
  TSAN(__tsan_acquire(order));
}

void barrier(Site at) { worker->barrier(at); }

#if defined(SHIM_TSAN)
static char fence_order;
#endif
// Fences are ordered among themselves: what was written before one is seen after a later one.
void fence() { TSAN(__tsan_acquire(&fence_order); __tsan_release(&fence_order)); }

// ---- Failures

void Worker::fail(const std::string& why) {
  if (!failed) error = why;
  failed = true;
}

void fail(Site at, const char* format, ...) {
  char what[512], whole[768];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof what, format, list);
  va_end(list);
  snprintf(whole, sizeof whole, "block %u, thread %u: %s (%s:%d)", now.block.x, now.thread.x, what, file_of(at), at.line);
  worker->fail(whole);
  worker->to_main();
}

void misaligned(const void* p, u32 bytes, const char* what, Site at) {
  fail(at, "%s: address %p is not %u-byte aligned", what, p, bytes);
}

// Where everybody waits: how many, and in what.
std::string Worker::stuck() {
  char text[256];
  snprintf(text, sizeof text, "deadlock in block %u: %u of %u threads have not ended", now.block.x, alive, threads);
  std::string all = text;
  std::vector<bool> told(threads, false);
  for (u32 i = 0; i < threads; i++) {
    const Thread& t = thread[i];
    if (t.done || told[i]) continue;
    u32 count = 0;
    for (u32 j = i; j < threads; j++)
      if (!thread[j].done && t.in == thread[j].in && t.at == thread[j].at) told[j] = true, count++;
    snprintf(text, sizeof text, "; %u in %s (%s:%d), the first of them thread %u", count, t.in, file_of(t.at), t.at.line, i);
    all += text;
  }
  return all;
}

// After a failure: threads stand where they stand, and their stacks are taken from them.
void Worker::clear_up() {
  for (u32 i = 0; i < threads; i++) {
    Thread& t = thread[i];
    if (!t.stack) continue;
    ASAN(__asan_unpoison_memory_region(t.stack->low, t.stack->bytes));
    TSAN(__tsan_destroy_fiber(t.stack->tsan); t.stack->tsan = nullptr);
    if (!OWN_STACKS) free_.push_back(t.stack);
    t.stack = nullptr;
    t.copies.clear();
    t.groups.clear();
  }
}

// ---- Shared memory: exactly as much as was asked for

void Worker::take_shared() {
#if defined(SHIM_TSAN)
  // Made by one who knows of no block: for the sanitizer, this block's memory is then not ordered after the last block's work.
  __tsan_switch_to_fiber(maker_tsan_, 1);
#endif
#if defined(SHIM_TSAN) || defined(SHIM_ASAN)
  void* p = nullptr;
  if (shared_bytes && posix_memalign(&p, 128, shared_bytes)) abort();
  now.shared = static_cast<unsigned char*>(p);
#endif
  if (shared_bytes) memset(now.shared, POISON, shared_bytes);
#if defined(SHIM_TSAN)
  __tsan_release(&born_order_);
  __tsan_switch_to_fiber(main_tsan_, 1);
#endif
}

bool Worker::give_shared() {
#if defined(SHIM_TSAN) || defined(SHIM_ASAN)
  free(now.shared);
  return true;
#else
  const unsigned char *before = now.shared - FENCE_BYTES, *after = now.shared + shared_bytes;
  for (size_t i = 0; i < FENCE_BYTES; i++)
    if (before[i] != FENCE || after[i] != FENCE) return false;
  return true;
#endif
}

bool in_shared(const Worker& w, const void* p, u32 bytes) {
  const u64 from = (u64)p - (u64)now.shared;
  return from <= w.shared_bytes && bytes <= w.shared_bytes - from;
}

// ---- Blocks

void Worker::begin(const Kernel& k, u32 blocks, u32 block_threads, u32 bytes, void** arguments, const Options& how, u64 number) {
  thunk = k.thunk;
  params = arguments;
  options = how;
  shared_bytes = bytes;
  random = how.seed * 0x2545f4914f6cdd1dull + number;
  if (threads != block_threads)
    for (u32 i = 0; i < MAX_THREADS; i++) order_[i] = (u16)i;
  threads = block_threads;
  now.threads.x = threads;
  now.blocks.x = blocks;
  worker = this;
  current = nullptr;
  catch_faults();
#if defined(SHIM_TSAN)
  main_tsan_ = __tsan_get_current_fiber();
  // Made here: what a fiber makes comes after all that the fiber has done.
  for (set_ = 0; set_ < STACK_SETS; set_++)
    for (u32 i = 0; i < threads; i++) {
      Stack* s = take_stack(i);
      if (!s->tsan) s->tsan = __tsan_create_fiber(0);
    }
  __tsan_release(&launch_order_);
#elif !defined(SHIM_ASAN)
  const size_t need = shared_bytes + 2 * FENCE_BYTES;
  if (memory_bytes_ < need) {
    free(memory_);
    memory_bytes_ = (need + 4095) / 4096 * 4096;
    memory_ = static_cast<unsigned char*>(aligned_alloc(128, memory_bytes_));
    if (!memory_) abort();
  }
  now.shared = memory_ + FENCE_BYTES;
  memset(memory_, FENCE, FENCE_BYTES);
  memset(now.shared + shared_bytes, FENCE, FENCE_BYTES);
#endif
}

void Worker::end() { worker = nullptr; }

bool Worker::run(u32 block) {
  now.block.x = block;
  take_shared();
  ready_head = ready_len = started = barrier_len = 0;
  alive = threads;
  failed = false;
  for (u32 i = 0; i < (threads + LANES - 1) / LANES; i++) {
    const u32 lanes = threads - i * LANES;
    warp[i].used = 0;
    warp[i].alive = lanes >= LANES ? ~0u : (1u << lanes) - 1;
  }
  TSAN(set_ = (set_ + 1) % STACK_SETS);
  ASAN(from_main_ = true);
  switch_to(&main_sp_, pick(), false);
  TSAN(__tsan_acquire(&ended_order_));
  if (!failed && alive) fail(stuck());
  if (failed) {
    clear_up();
    (void)give_shared();
    return false;
  }
  if (!give_shared()) {
    char text[128];
    snprintf(text, sizeof text, "block %u wrote outside its %u bytes of shared memory", block, shared_bytes);
    fail(text);
    return false;
  }
  return true;
}

}  // namespace shim

// What the compiler calls where a kernel loads or stores through an address that its type does not allow (-fsanitize=alignment).
namespace {
struct Mismatch {
  const char* file;
  u32 line, column;
  const struct { u16 kind, info; char name[1]; } * type;
  unsigned char log_alignment, access;
};
void mismatch(const Mismatch* m, const void* p) {
  shim::fail({m->file, (int)m->line}, "address %p of %s is not %u-byte aligned", p, m->type->name, 1u << m->log_alignment);
}
}  // namespace
extern "C" {
__attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(const Mismatch* m, const void* p) { mismatch(m, p); }
__attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(const Mismatch* m, const void* p) { mismatch(m, p); }
}
