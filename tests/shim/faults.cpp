// A kernel that reads or writes where there is no memory, or divides by zero, ends its launch and not the process. The sanitizers
// have handlers of their own, which say more.
#include "engine.h"

#include <csignal>
#include <cstdlib>
#include <mutex>

#include <sys/mman.h>
#include <ucontext.h>

namespace shim {

#if defined(SHIM_TSAN) || defined(SHIM_ASAN)
void catch_faults() {}
#else

namespace {

#if defined(__x86_64__)
constexpr bool ON_STACK = true;  // a call leaves its return address on the stack
#else
constexpr bool ON_STACK = false;
#endif

__thread void* fault_address;
__thread int fault_signal;
struct sigaction before[NSIG];

// Runs on the stack of the thread that failed, from the top.
void end_thread() {
  const Site nowhere{"unknown line", 0};
  if (fault_signal == SIGFPE) fail(nowhere, "integer division by zero");
  fail(nowhere, "illegal address %p", fault_address);
}

void handle(int signal, siginfo_t* info, void* context) {
  ucontext_t* u = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  greg_t& sp = u->uc_mcontext.gregs[REG_RSP];
  greg_t& pc = u->uc_mcontext.gregs[REG_RIP];
#else
  auto& sp = u->uc_mcontext.sp;
  auto& pc = u->uc_mcontext.pc;
#endif
  const Stack* stack = worker && worker->current ? worker->current->stack : nullptr;
  // The page below a stack is its guard.
  if (stack && (u64)sp >= (u64)stack->low - 4096 && (u64)sp <= (u64)stack->low + stack->bytes) {
    fault_address = info->si_addr;
    fault_signal = signal;
    // As a call finds it.
    sp = (decltype(+sp))((u64)stack->low + stack->bytes - (ON_STACK ? 8 : 0));
    pc = (decltype(+pc))(u64)&end_thread;
    return;
  }
  // Not a kernel's: as it was before.
  sigaction(signal, &before[signal], nullptr);
}

}  // namespace

// A handler for this process, and a stack for it on this OS thread: a fiber's own may be what is full.
void catch_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, &before[signal]);
  });
  static thread_local bool ready = false;
  if (ready) return;
  ready = true;
  stack_t own{}, old{};
  if (!sigaltstack(nullptr, &old) && !(old.ss_flags & SS_DISABLE)) return;
  own.ss_size = 64 << 10;
  own.ss_sp = mmap(nullptr, own.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own.ss_sp != MAP_FAILED) sigaltstack(&own, nullptr);
}

#endif

}  // namespace shim
