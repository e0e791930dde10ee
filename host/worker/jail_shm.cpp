// SPDX-License-Identifier: Apache-2.0
#include "jail_shm.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "jail_step.h"
#include "log.h"

namespace kvgpu::worker {

namespace fs = std::filesystem;

namespace {

using namespace std::chrono_literals;

constexpr auto START_LIMIT = 10s;  // a jail takes milliseconds, on a busy host more
constexpr auto PAUSE = 1ms;
constexpr char SHM[] = "/dev/shm";

Descriptor open_namespace(const std::string& process) {
  return Descriptor(open(("/proc/" + process + "/ns/mnt").c_str(), O_RDONLY | O_CLOEXEC));
}

// A copy of the mount, attached to nothing. Whatever process has that number now: only what an
// owner's workers have in common belongs to their uid.
bool take_from(const Descriptor& theirs, const Descriptor& own, uid_t uid, Descriptor* found,
               std::string* error) {
  if (setns(theirs.get(), CLONE_NEWNS) != 0) return true;
  Descriptor mount(
      open_tree(AT_FDCWD, SHM, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW));
  if (setns(own.get(), CLONE_NEWNS) != 0) return fail(error, "come back to the own mounts");
  struct stat info;
  if (mount.get() >= 0 && fstat(mount.get(), &info) == 0 && info.st_uid == uid) {
    *found = std::move(mount);
  }
  return true;
}

// NVIDIA's driver (580) leaves there what workers had that were killed: cuda.shm.UID.PID.N.
void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    unsigned uid = 0, pid = 0;
    if (std::sscanf(file->path().filename().c_str(), "cuda.shm.%x.%x.", &uid, &pid) == 2 &&
        kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) {
      unlink(file->path().c_str());
    }
  }
}

}  // namespace

bool find_shared_memory(const std::vector<pid_t>& workers, uid_t uid, Descriptor* found,
                        std::string* error) {
  const Descriptor own = open_namespace("self");
  const auto deadline = std::chrono::steady_clock::now() + START_LIMIT;
  for (const pid_t worker : workers) {
    for (;;) {
      const Descriptor theirs = open_namespace(std::to_string(worker));
      if (theirs.get() < 0) break;  // it has ended
      if (!take_from(theirs, own, uid, found, error)) return false;
      if (found->get() >= 0) return true;
      if (std::chrono::steady_clock::now() > deadline) break;
      std::this_thread::sleep_for(PAUSE);
    }
  }
  if (!workers.empty()) log("no worker of the same owner shows its %s: this one has its own", SHM);
  return true;
}

bool show_shared_memory(const Descriptor& found, uid_t uid, gid_t gid, const fs::path& target,
                        std::string* error) {
  if (mkdir(target.c_str(), 0755) != 0) return fail(error, "make " + target.string());
  if (found.get() >= 0) {
    if (move_mount(found.get(), "", AT_FDCWD, target.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
      return fail(error, "show the owner's " + std::string(SHM));
    }
    remove_leftovers(target);
    return true;
  }
  const std::string options = "mode=0700,nr_inodes=" + std::to_string(SHM_FILES) +
                              ",size=" + std::to_string(SHM_BYTES) + ",uid=" + std::to_string(uid) +
                              ",gid=" + std::to_string(gid);
  constexpr unsigned long FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  return mount("kvgpu-shm", target.c_str(), "tmpfs", FLAGS, options.c_str()) == 0 ||
         fail(error, "mount " + std::string(SHM));
}

void keep_compute_cache_there() {
  setenv("CUDA_CACHE_PATH", (std::string(SHM) + "/compute-cache").c_str(), 1);
  setenv("CUDA_CACHE_MAXSIZE", std::to_string(COMPUTE_CACHE_BYTES).c_str(), 1);
}

}  // namespace kvgpu::worker
