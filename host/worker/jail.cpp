// SPDX-License-Identifier: Apache-2.0
#include "jail.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "jail_shm.h"
#include "jail_step.h"

namespace kvgpu::worker {

namespace fs = std::filesystem;

namespace {

constexpr char NEW_ROOT[] = "/tmp";  // any folder: a private tmpfs is mounted over it

// With all that is mounted below: a remount would change the one mount only. Linux 5.12.
bool make_read_only(const fs::path& target, std::string* error) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  if (mount_setattr(AT_FDCWD, target.c_str(), AT_RECURSIVE, &attributes, sizeof attributes) != 0) {
    return fail(error, "make " + target.string() + " read-only");
  }
  return true;
}

// Makes `path` of the old root visible at the same place in the new one. In a container the
// driver's files are mounts of their own below /usr: `and_below` shows those, too.
bool show(const fs::path& path, bool read_only, bool and_below, std::string* error) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return true;  // what this host does not have is not shown
  const fs::path target = NEW_ROOT + path.string();
  std::error_code ignored;
  if (S_ISDIR(info.st_mode)) {
    fs::create_directories(target, ignored);
  } else {
    fs::create_directories(target.parent_path(), ignored);
    const int fd = open(target.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    if (fd >= 0) close(fd);
  }
  const unsigned long bind = MS_BIND | (and_below ? MS_REC : 0);
  if (mount(path.c_str(), target.c_str(), nullptr, bind, nullptr) != 0) {
    return fail(error, "bind " + path.string());
  }
  return !read_only || make_read_only(target, error);
}

// What libcuda opens: the control nodes, those of the GPUs (nvidia0, nvidia1 ...), and where there
// are MIG slices the folder of their capabilities. Not those of displays, NVLink, profilers.
bool is_needed(const char* name) {
  constexpr std::string_view GPU = "nvidia";
  const std::string_view device = name;
  for (const char* needed : {"null", "zero", "urandom", "nvidiactl", "nvidia-uvm", "nvidia-caps"}) {
    if (device == needed) return true;
  }
  return device.starts_with(GPU) && device.size() > GPU.size() &&
         device.find_first_not_of("0123456789", GPU.size()) == std::string_view::npos;
}

bool show_devices(std::string* error) {
  DIR* const folder = opendir("/dev");
  if (folder == nullptr) return fail(error, "read /dev");
  std::vector<std::string> names;
  while (const dirent* entry = readdir(folder)) {
    if (is_needed(entry->d_name)) names.emplace_back(entry->d_name);
  }
  closedir(folder);
  for (const std::string& name : names) {
    if (!show("/dev/" + name, false, true, error)) return false;
  }
  return true;
}

// Not a pid namespace of our own: to CUDA's IPC two first processes would be one. There must be a
// /proc that knows us by the number that getpid says, or cuInit answers 304 (libcuda does not find
// itself); of others it shows nothing. Linux 5.8: before, the option is not this mount's alone.
bool show_processes(std::string* error) {
  const std::string target = std::string(NEW_ROOT) + "/proc";
  constexpr unsigned long FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (mkdir(target.c_str(), 0555) != 0 ||
      mount("proc", target.c_str(), "proc", FLAGS, "hidepid=2") != 0) {
    return fail(error, "mount /proc");
  }
  return true;
}

// A folder of the old root that may lie under NEW_ROOT, in a test: open, it stays within reach when
// a mount has covered it.
class Folder {
 public:
  explicit Folder(const fs::path& path)
      : fd_(path.is_absolute() ? open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1) {}
  ~Folder() {
    if (fd_ >= 0) close(fd_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  bool is_open() const { return fd_ >= 0; }
  // Makes it visible in the new root, with all that is mounted below.
  [[nodiscard]] bool show(const fs::path& target, std::string* error) const {
    std::error_code ignored;
    fs::create_directories(target, ignored);
    const std::string source = "/proc/self/fd/" + std::to_string(fd_);
    return mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0 ||
           fail(error, "bind " + target.string());
  }

 private:
  const int fd_;
};

bool change_root(const JailConfig& config, std::string* error) {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return fail(error, "make mounts private");
  }
  const fs::path driver_path = fs::path(config.driver_path).parent_path();
  const Folder driver(driver_path);
  Descriptor shm;
  if (!find_shared_memory(config.join, config.uid, &shm, error)) return false;
  if (mount("kvgpu", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0) {
    return fail(error, "mount a root");
  }
  for (const char* path : {"/usr", "/lib", "/lib64", "/opt", "/etc/ld.so.cache"}) {
    if (!show(path, true, true, error)) return false;
  }
  if (!show("/sys", true, false, error)) return false;
  if (!show_processes(error) || !show_devices(error)) return false;
  const fs::path shm_path = std::string(NEW_ROOT) + "/dev/shm";
  if (!show_shared_memory(shm, config.uid, config.gid, shm_path, error)) return false;
  if (driver.is_open()) {
    const fs::path target = NEW_ROOT + driver_path.string();
    if (!driver.show(target, error) || !make_read_only(target, error)) return false;
  }
  if (chdir(NEW_ROOT) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 ||
      umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) {
    return fail(error, "change the root");
  }
  if (mount(nullptr, "/", nullptr, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) != 0) {
    return fail(error, "make the root read-only");
  }
  return true;
}

bool drop_bounding_set(std::string* error) {
  for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap) {
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) return fail(error, "drop capabilities");
  }
  return true;
}

// The change of the user empties the permitted, effective and ambient sets, not the inheritable
// one.
bool drop_capabilities(std::string* error) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      syscall(SYS_capset, &header, none) != 0) {
    return fail(error, "drop capabilities");
  }
  return true;
}

bool limit(int resource, rlim_t most, std::string* error) {
  rlimit now{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) {
    return fail(error, "read limits");
  }
  const rlim_t value = std::min(most, now.rlim_max);
  const rlimit wanted{value, value};
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted) != 0) {
    return fail(error, "set limits");
  }
  return true;
}

}  // namespace

bool enter_jail(const JailConfig& config, std::string* error) {
  if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0) {
    return fail(error, "new namespaces");
  }
  if (!change_root(config, error) || !drop_bounding_set(error)) return false;
  if (config.max_tasks != 0 && !limit(RLIMIT_NPROC, config.max_tasks, error)) return false;
  if (setgroups(0, nullptr) != 0 || setresgid(config.gid, config.gid, config.gid) != 0 ||
      setresuid(config.uid, config.uid, config.uid) != 0) {
    return fail(error, "change the user to " + std::to_string(config.uid));
  }
  // To the other workers of its owner, which have the same uid. The change of the user has done
  // that unless fs.suid_dumpable says otherwise.
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return fail(error, "keep out debuggers");
  keep_compute_cache_there();
  return drop_capabilities(error);
}

bool drop_inherited(int last_fd, std::string* error) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail(error, "no new privileges");
  if (syscall(SYS_close_range, last_fd + 1, ~0u, 0) != 0) return fail(error, "close descriptors");
  // Not RLIMIT_AS: libcuda reserves more address space than any machine has memory.
  if (!limit(RLIMIT_CORE, 0, error) || !limit(RLIMIT_NOFILE, MAX_DESCRIPTORS, error) ||
      !limit(RLIMIT_FSIZE, MAX_FILE_BYTES, error)) {
    return false;
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond that fails, and ends nobody
  return true;
}

}  // namespace kvgpu::worker
