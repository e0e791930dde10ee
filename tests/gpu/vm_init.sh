#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The guest's first process, in its initial RAM disk: goes on in the host's own file system, which
# comes by 9p, read-only, under a layer of memory. What it runs there is vm_guest.sh.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /run /host /layer /machine
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
for module in /modules/*; do insmod "$module"; done
ifconfig lo 127.0.0.1 up
hostname kvgpu-guest

by_9p=trans=virtio,version=9p2000.L,msize=524288
mount -t tmpfs layer /layer
mkdir -p /layer/upper /layer/work
mount -t 9p -o "$by_9p,cache=loose,ro" host /host &&
  mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /machine ||
  echo "guest: no file system of the host"
for folder in proc sys dev run; do
  mkdir -p "/machine/$folder"
  mount --rbind "/$folder" "/machine/$folder"
done
mkdir -p /machine/vm/payload /machine/vm/results /machine/vm/disk
cp /payload/* /machine/vm/payload
mount -t 9p -o "$by_9p" results /machine/vm/results || echo "guest: no folder for results"
mount -t ext4 /dev/vda /machine/vm/disk || echo "guest: no disk"
chroot /machine /bin/sh /vm/results/vm_guest.sh
sync
poweroff -f
