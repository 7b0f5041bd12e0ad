#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# The first process of the machine that scripts/rdma_vm.sh boots: loads the modules, mounts the
# host's files beneath a layer in memory, and hands over to the script that came with this boot.
B=/bin/busybox
OPTIONS=trans=virtio,version=9p2000.L,msize=512000,ro

fail() {
  echo "[vm] cannot $1"
  $B poweroff -f
}

$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do
  options=
  [ "$module" = dummy ] && options=numdummies=0
  $B insmod "/modules/$module.ko" $options || echo "[vm] cannot load $module"
done
$B mount -t 9p -o $OPTIONS,cache=loose host /host || fail "mount the host's files"
$B mount -t 9p -o $OPTIONS,cache=loose extra /extra || fail "mount the packages"
$B mount -t tmpfs tmpfs /upper
$B mkdir /upper/files /upper/work
$B mount -t overlay -o lowerdir=/extra:/host,upperdir=/upper/files,workdir=/upper/work over /root ||
  fail "lay the files over each other"
for folder in proc sys dev run; do $B mkdir -p /root/$folder; done
$B mount -t tmpfs tmpfs /root/run
$B mkdir -p /root/run/boot
$B mount -t 9p -o $OPTIONS,cache=none boot /root/run/boot || fail "mount the script of this boot"
$B mkdir -p /dev/shm /dev/pts
$B mount -t tmpfs -o mode=1777 tmpfs /dev/shm
$B mount -t devpts devpts /dev/pts
$B ln -sf /proc/self/fd /dev/fd
for folder in proc sys dev; do $B mount --move /$folder /root/$folder; done
exec $B switch_root /root /bin/bash /run/boot/script
