// Insides of the engine that runs kernels as fibers: see shim.cpp.
#pragma once
#include "dev.h"
// clang-format off: dev.h comes first, because shim.h names its types.
#include <string>
#include <vector>
#include "launch.h"

// What only this file's readers may know of the sanitizers: the engine itself is compiled without them.
#if defined(SHIM_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_read_range(void*, unsigned long);
void __tsan_write_range(void*, unsigned long);
}
#define TSAN(...) __VA_ARGS__
#else
#define TSAN(...)
#endif
#if defined(SHIM_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
void __asan_unpoison_memory_region(const volatile void*, size_t);
}
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif

namespace shim {

constexpr u32 LANES = 32;
constexpr u32 MAX_THREADS = 1024;

struct Stack {
  char* low = nullptr;
  size_t bytes = 0;
  u32 number = 0;
  TSAN(void* tsan = nullptr;)
};

struct Copy {
  unsigned char* shared;
  const unsigned char* global;
  u32 bytes;
  bool real, done;
};

// A CUDA thread of the block that runs.
struct Thread {
  void* sp;                   // where it stands while it does not run
  Stack* stack;               // null before it starts and after it ends
  u32 index;
  bool done, waits;
  Site at;                    // of what it waits in
  const char* in;             // what it waits in
  u64 value, result;          // of a collective
  u32 argument, width;
  std::vector<Copy> copies;   // cp.async under way, oldest first
  std::vector<u32> groups;    // ends of the committed groups in `copies`
};

// Lanes of a warp that wait for the others in their mask.
struct Meeting {
  u32 mask, arrived, number;
  Collective what;
  Site at;
  TSAN(char order[2];)
};

constexpr u32 MEETINGS = 8;

struct Warp {
  Meeting meeting[MEETINGS];
  u32 used;   // one bit for each meeting under way
  u32 alive;  // lanes that have not ended
};

// Runs blocks, one after the other, on whichever OS thread holds it. Its stacks stay between launches.
struct Worker {
  // The launch.
  Thunk thunk = nullptr;
  void** params = nullptr;
  Options options;
  u32 threads = 0;
  u64 random = 0;
  u32 shared_bytes = 0;

  // The block.
  Thread thread[MAX_THREADS];
  Warp warp[MAX_THREADS / LANES];
  Thread* current = nullptr;
  Thread* ready[MAX_THREADS];
  u32 ready_head = 0, ready_len = 0, started = 0, alive = 0;
  Thread* at_barrier[MAX_THREADS];
  u32 barrier_len = 0, barrier_number = 0;
  Site barrier_at{};
  std::string error;
  bool failed = false;

  Worker();
  // Readies the worker for the blocks of a launch, and gives back what only that launch needed.
  void begin(const Kernel& k, u32 blocks, u32 threads, u32 shared_bytes, void** params, const Options& options, u64 number);
  void end();
  // Runs one block. False: `error` says why not.
  bool run(u32 block);

  // For the thread that runs.
  void wait(const char* in, Site at);
  void wake(Thread* t);
  void fail(const std::string& why);
  void barrier(Site at);
  [[noreturn]] void run_fiber();
  // Leaves the thread for good.
  [[noreturn]] void to_main();

 private:
  std::vector<Stack*> stacks_, free_;
  void* main_sp_ = nullptr;
  unsigned char* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  u16 order_[MAX_THREADS];  // in which threads start, where chance decides

  Thread* pick();
  void start(Thread* t);
  void enter(Thread* t);
  void switch_to(void** from, Thread* next, bool for_good);
  void ended(Thread* me);
  void release_barrier();
  void clear_up();
  std::string stuck();
  Stack* take_stack(u32 index);
  void make_stacks();
  void take_shared();
  bool give_shared();

  TSAN(void* main_tsan_ = nullptr; void* maker_tsan_ = nullptr; u32 set_ = 0; char launch_order_, born_order_, ended_order_, barrier_order_[2];)
  ASAN(const void* main_low_ = nullptr; size_t main_bytes_ = 0; bool from_main_ = false;)
};

extern __thread Worker* worker __attribute__((tls_model("initial-exec")));

u64 next_random(u64& state);

// A lane of a warp has ended: those who waited for it may go on.
void lane_ended(Worker& w, u32 warp);
// Copies that the block left behind.
void drop_copies(Thread& t);

// Makes faults of kernels on this OS thread failures of their launches.
void catch_faults();

bool in_shared(const Worker& w, const void* p, u32 bytes);

}  // namespace shim
