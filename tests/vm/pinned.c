/* SPDX-License-Identifier: Apache-2.0
 * What the kernel lets a program do with pinned memory, one line per buffer and deed:
 * "KIND: DEED: RESULT". docs/pinned-memory.md says what the lines must be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 * 4096 };

static const char* path;
static char expected[BYTES];

static void cuda(const char* what, int result) {
  if (result == 0) return;
  fprintf(stderr, "pinned: %s: CUDA error %d\n", what, result);
  exit(1);
}

static void* entry(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (address == NULL) {
    fprintf(stderr, "pinned: no %s\n", name);
    exit(1);
  }
  return address;
}

static void fill(char* data, int seed) {
  for (int i = 0; i < BYTES; ++i) data[i] = (char)(i / 3 + seed);
}

static int holds(const char* data, int seed) {
  fill(expected, seed);
  return memcmp(data, expected, BYTES) == 0;
}

static void say(const char* kind, const char* deed, int ok, int error) {
  printf("%s: %s: %s\n", kind, deed, ok ? "works" : error == 0 ? "wrong" : strerrorname_np(error));
}

static void files(const char* kind, char* data, int flags, const char* deed) {
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
  if (fd < 0) {
    say(kind, deed, 0, errno);
    return;
  }
  fill(data, 1);
  ssize_t n = pwrite(fd, data, BYTES, 0);
  int error = n < 0 ? errno : 0;
  if (n == BYTES) {
    memset(data, 0, BYTES);
    n = pread(fd, data, BYTES, 0);
    error = n < 0 ? errno : 0;
  }
  say(kind, deed, n == BYTES && holds(data, 1), error);
  close(fd);
}

/* One write by io_uring, then the registration of the buffer as a fixed one. */
static void uring(const char* kind, char* data) {
  struct io_uring_params parameters = {0};
  int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (ring < 0 || fd < 0) {
    say(kind, "io_uring", 0, errno);
    return;
  }
  size_t sq_bytes = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
  size_t cq_bytes = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
  char* sq = mmap(NULL, sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  char* cq = mmap(NULL, cq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
  struct io_uring_sqe* entries = mmap(NULL, parameters.sq_entries * sizeof *entries,
                                      PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  fill(data, 2);
  memset(entries, 0, sizeof *entries);
  entries->opcode = IORING_OP_WRITE;
  entries->fd = fd;
  entries->addr = (uintptr_t)data;
  entries->len = BYTES;
  *(unsigned*)(sq + parameters.sq_off.array) = 0;
  __atomic_store_n((unsigned*)(sq + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
  if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) {
    say(kind, "io_uring", 0, errno);
    return;
  }
  int result = ((struct io_uring_cqe*)(cq + parameters.cq_off.cqes))->res;
  static char back[BYTES];
  int ok = result == BYTES && pread(fd, back, BYTES, 0) == BYTES && holds(back, 2);
  say(kind, "io_uring", ok, result < 0 ? -result : 0);
  struct iovec fixed = {data, BYTES};
  int failed = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &fixed, 1) != 0;
  say(kind, "io_uring fixed buffers", !failed, failed ? errno : 0);
  close(fd);
  close(ring);
}

static sigjmp_buf after_fault;
static void on_fault(int signal) { siglongjmp(after_fault, signal); }

static void protect(const char* kind, char* data) {
  struct sigaction ours = {0}, before;
  ours.sa_handler = on_fault;
  fill(data, 3);
  int ok = mprotect(data, 4096, PROT_READ) == 0 && holds(data, 3);
  sigaction(SIGSEGV, &ours, &before);
  volatile int faulted = 1;
  if (sigsetjmp(after_fault, 1) == 0) {
    ((volatile char*)data)[0] = 99;
    faulted = 0;
  }
  sigaction(SIGSEGV, &before, NULL);
  ok = ok && faulted && mprotect(data, 4096, PROT_READ | PROT_WRITE) == 0;
  fill(data, 4);
  say(kind, "mprotect", ok && holds(data, 4), 0);
}

static void debugger(const char* kind, char* data) {
  fill(data, 5);
  int memory = open("/proc/self/mem", O_RDWR);
  static char back[BYTES];
  int ok = pread(memory, back, BYTES, (off_t)(uintptr_t)data) == BYTES && holds(back, 5);
  int error = ok ? 0 : errno;
  fill(back, 6);
  ok = ok && pwrite(memory, back, BYTES, (off_t)(uintptr_t)data) == BYTES && holds(data, 6);
  say(kind, "/proc/PID/mem", ok, ok ? 0 : error);
  close(memory);
  /* A child made without fork's handlers, as a debugger is no child at all. */
  pid_t tracer = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (tracer == 0) {
    pid_t parent = getppid();
    int bad = ptrace(PTRACE_ATTACH, parent, NULL, NULL) != 0;
    waitpid(parent, NULL, __WALL);
    errno = 0;
    long word = ptrace(PTRACE_PEEKDATA, parent, data, NULL);
    bad = bad || errno != 0 || ptrace(PTRACE_POKEDATA, parent, data + 8, (void*)word) != 0;
    ptrace(PTRACE_DETACH, parent, NULL, NULL);
    _exit(bad ? errno : 0);
  }
  int status = -1;
  while (waitpid(tracer, &status, 0) < 0 && errno == EINTR) continue;
  ok = WIFEXITED(status) && WEXITSTATUS(status) == 0 && memcmp(data, data + 8, 8) == 0;
  say(kind, "ptrace", ok, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}

static void fork_and_write(const char* kind, char* data) {
  fill(data, 7);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    int before = holds(data, 7);
    fill(data, 8);
    _exit(before && holds(data, 8) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  const char* outcome = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? "SIGSEGV"
                        : WIFEXITED(status) && WEXITSTATUS(status) == 0    ? "private copies"
                                                                           : "wrong";
  printf("%s: fork, the child: %s\n", kind, outcome);
  say(kind, "fork, the parent", holds(data, 7), 0);
}

static void look_at(const char* kind, char* data) {
  files(kind, data, 0, "read and write");
  files(kind, data, O_DIRECT, "O_DIRECT");
  uring(kind, data);
  protect(kind, data);
  debugger(kind, data);
  fork_and_write(kind, data);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  path = argv[1];
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "pinned: %s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = entry(library, "cuInit");
  int (*retain)(void**, int) = entry(library, "cuDevicePrimaryCtxRetain");
  int (*set_current)(void*) = entry(library, "cuCtxSetCurrent");
  int (*host_alloc)(void**, size_t, unsigned) = entry(library, "cuMemHostAlloc");
  int (*host_register)(void*, size_t, unsigned) = entry(library, "cuMemHostRegister_v2");
  void* context = NULL;
  void* pinned = NULL;
  cuda("cuInit", init(0));
  cuda("cuDevicePrimaryCtxRetain", retain(&context, 0));
  cuda("cuCtxSetCurrent", set_current(context));
  cuda("cuMemHostAlloc", host_alloc(&pinned, BYTES, 0));
  look_at("allocated", pinned);
  char* own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  cuda("cuMemHostRegister", host_register(own, BYTES, 0));
  look_at("registered", own);
  return 0;
}
