#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What vm.py has run in the guest, in the host's file system: installs the package, then runs
# /vm/results/jobs/LANE/N-NAME; the lanes side by side, the jobs of one after each other. Of each job it
# leaves NAME.out, NAME.err and NAME.status; the lines with "guest: " are evidence that vm.py reads.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
results=/vm/results

say() { echo "guest: $*"; }

# The host's driver has no place in a guest. The layer of memory takes the deletions.
remove_host_driver() {
  rm -rf /usr/local/nvidia
  ldconfig -p | sed -n 's/.*lib\(cuda\|nvidia-ml\)\.so.* => //p' | while read -r library; do
    rm -f "$library" && say "removed $library"
  done
  ldconfig
}

# Triggers of other packages would read half of the file system: ldconfig is all that ours needs.
install_package() {
  dpkg --no-triggers --install /vm/payload/*.deb ||
    { say "dpkg --install failed: unpacked only"; dpkg-deb --extract /vm/payload/*.deb /; }
  ldconfig
}

start_agent() {
  local tries=0
  /usr/libexec/kvgpu/kvgpu-agentd >"$results/agentd.log" 2>&1 &
  while [ ! -S /run/kvgpu/guest.sock ] && [ "$tries" -lt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
}

run_job() { # FILE
  local name status
  name=$(basename "$1")
  name=${name#*-}
  say "begin $name, up $(cut -d' ' -f1 /proc/uptime) s"
  env -i VM_JOB="$name" RECORD="$results/$name.json" DISK=/vm/disk HOME=/root OMP_NUM_THREADS=1 \
    LD_LIBRARY_PATH="$(cat "$results/library_path")" \
    timeout -k 10 "$(cat "$results/job_limit_s")" /bin/sh "$1" \
    </dev/null >"$results/$name.out" 2>"$results/$name.err"
  status=$?
  echo "$status" >"$results/$name.status"
  say "end $name status $status, up $(cut -d' ' -f1 /proc/uptime) s"
}

run_lane() { # FOLDER
  for job in "$1"/*; do run_job "$job"; done
}

# Which driver library each job has mapped, from its processes' /proc/PID/maps.
look_at_maps() {
  grep -H -m1 -o '/[^ ]*/libcuda\.so[^ ]*' /proc/[0-9]*/maps 2>/dev/null |
    while IFS=: read -r maps library; do
      name=$(tr '\0' '\n' <"${maps%maps}environ" 2>/dev/null | sed -n 's/^VM_JOB=//p')
      [ -z "$name" ] || echo "$name $library"
    done
}

say "version $(cat /proc/version)"
say "userland $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)"
for device in /sys/bus/pci/devices/*; do
  say "pci $(cat "$device/vendor"):$(cat "$device/device") $(basename "$device")"
done
remove_host_driver
install_package
say "package $(dpkg-query --show --showformat '${Package} ${Version} ${Status}' kvgpu-guest)"
say "library $(ldconfig -p | grep 'libcuda.so.1 ')"
start_agent
say "agent $(ls /run/kvgpu/guest.sock), up $(cut -d' ' -f1 /proc/uptime) s"

for lane in "$results"/jobs/*; do run_lane "$lane" & done
while [ "$(ls "$results" | grep -c '\.status$')" -lt "$(cat "$results/n_jobs")" ]; do
  look_at_maps >>"$results/maps"
  sleep 0.2
done
dmesg >"$results/dmesg.log" 2>&1
say "finished, up $(cut -d' ' -f1 /proc/uptime) s"
