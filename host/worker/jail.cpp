// SPDX-License-Identifier: Apache-2.0
#include "jail.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace kvgpu::worker {

namespace fs = std::filesystem;

namespace {

constexpr char NEW_ROOT[] = "/tmp";  // any folder: a private tmpfs is mounted over it

bool fail(std::string* error, const std::string& step) {
  *error = "jail: " + step + ": " + strerror(errno);
  return false;
}

// Makes `path` of the old root visible at the same place in the new one.
bool show(const fs::path& path, bool read_only, std::string* error) {
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
  if (mount(path.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return fail(error, "bind " + path.string());
  }
  if (!read_only) return true;
  constexpr unsigned long FLAGS = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID;
  if (mount(nullptr, target.c_str(), nullptr, FLAGS, nullptr) != 0) {
    return fail(error, "make " + path.string() + " read-only");
  }
  return true;
}

bool show_devices(std::string* error) {
  for (const char* name : {"/dev/null", "/dev/zero", "/dev/urandom"}) {
    if (!show(name, false, error)) return false;
  }
  DIR* const folder = opendir("/dev");
  if (folder == nullptr) return fail(error, "read /dev");
  std::vector<std::string> names;
  while (const dirent* entry = readdir(folder)) {
    if (std::strncmp(entry->d_name, "nvidia", 6) == 0) names.emplace_back(entry->d_name);
  }
  closedir(folder);
  for (const std::string& name : names) {
    if (!show("/dev/" + name, false, error)) return false;
  }
  return true;
}

bool change_root(const JailConfig& config, std::string* error) {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return fail(error, "make mounts private");
  }
  // The driver's folder may lie under NEW_ROOT in a test: a bind mount made first keeps it
  // reachable by this descriptor.
  const fs::path driver_folder = fs::path(config.driver_path).parent_path();
  const int driver_fd = open(driver_folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (mount("kvgpu", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0) {
    return fail(error, "mount a root");
  }
  for (const char* path : {"/usr", "/lib", "/lib64", "/opt", "/etc/ld.so.cache", "/sys"}) {
    if (!show(path, true, error)) return false;
  }
  if (!show("/proc", false, error) || !show_devices(error)) return false;
  if (driver_fd >= 0 && driver_folder.is_absolute()) {
    const fs::path target = NEW_ROOT + driver_folder.string();
    std::error_code ignored;
    fs::create_directories(target, ignored);
    const std::string source = "/proc/self/fd/" + std::to_string(driver_fd);
    if (mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
      return fail(error, "bind " + driver_folder.string());
    }
    close(driver_fd);
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

bool drop_capabilities(std::string* error) {
  for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap) {
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) return fail(error, "drop capabilities");
  }
  return true;
}

}  // namespace

bool enter_jail(const JailConfig& config, std::string* error) {
  if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0) {
    return fail(error, "new namespaces");
  }
  if (!change_root(config, error) || !drop_capabilities(error)) return false;
  if (setgroups(0, nullptr) != 0 || setresgid(config.gid, config.gid, config.gid) != 0 ||
      setresuid(config.uid, config.uid, config.uid) != 0) {
    return fail(error, "change the user to " + std::to_string(config.uid));
  }
  return true;
}

bool drop_inherited(int last_fd, std::string* error) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail(error, "no new privileges");
  if (syscall(SYS_close_range, last_fd + 1, ~0u, 0) != 0) return fail(error, "close descriptors");
  return true;
}

}  // namespace kvgpu::worker
