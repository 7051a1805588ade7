// The context switch: saves what a call must keep and the stack pointer, and goes on where another switch left off.
#pragma once

extern "C" void shim_switch(void** save, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl shim_switch
.hidden shim_switch
.type shim_switch, @function
shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size shim_switch, .-shim_switch
)");

// A stack on which a switch enters `function`, as if called.
static inline void* prepare_stack(char* top, void (*function)()) {
  void** sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;  // the return address of `function`, which never returns
  *--sp = reinterpret_cast<void*>(function);
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl shim_switch
.hidden shim_switch
.type shim_switch, %function
shim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size shim_switch, .-shim_switch
)");

static inline void* prepare_stack(char* top, void (*function)()) {
  void** sp = reinterpret_cast<void**>(top) - 20;
  for (int i = 0; i < 20; i++) sp[i] = nullptr;
  sp[11] = reinterpret_cast<void*>(function);
  return sp;
}
#else
#error "no context switch for this processor"
#endif
