#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Runs a command in a virtual machine that has a real RDMA stack in software (rdma_rxe), on a host
# that needs no RDMA at all: a Debian kernel under QEMU, without KVM.
# Usage: scripts/rdma_vm.sh [-t SECONDS] [-m MIB] COMMAND [ARGUMENT...]
#
# The machine sees the host's files at the same paths and runs what was built here; what it writes
# is lost. It has device rxe0 with the addresses 10.77.0.1 to .4 (GID 1 to 4), loopback, and no
# other network; RADIX_TEST_RDMA_DEVICE names the device, RADIX_TEST_RDMA_LINK its interface. Kernel,
# QEMU and RDMA libraries are Debian packages, unpacked once (about 100 MB) under build/rdma_vm,
# never installed.
# Exit status: the command's; 77: there can be no machine here (it says why); 97: it did not come
# up; 124: time limit.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${HERE%/*}/build/rdma_vm"
LIMIT=240
MEMORY=2048
MODULES="virtio_pci 9pnet_virtio 9p overlay crc32_generic rdma_rxe ib_uverbs veth dummy"

while getopts t:m: option; do
  case "$option" in
    t) LIMIT="$OPTARG" ;;
    m) MEMORY="$OPTARG" ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '5,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }

skip() {
  echo "no RDMA machine: $1" >&2
  exit 77
}

# Packages that the host has are used from there; the kernel is not to be installed beside it.
fill_cache() {
  local kernel packages="qemu-system-x86 ibverbs-providers busybox-static iproute2"
  echo "fetching a kernel and QEMU into $CACHE" >&2
  rm -rf "$CACHE" && mkdir -p "$CACHE/packages/partial" "$CACHE/extra" "$CACHE/kernel" || return 1
  apt-get update -qq || true
  kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: *\(linux-image-[0-9].*\)/\1/p' | head -1)
  [ -n "$kernel" ] || return 1
  # shellcheck disable=SC2086  # one word per package
  apt-get install -y -qq --no-install-recommends --download-only \
    -o Dir::Cache::archives="$CACHE/packages" $packages >/dev/null || return 1
  (cd "$CACHE/packages" && apt-get download -qq -o APT::Sandbox::User=root "$kernel") || return 1
  for package in "$CACHE"/packages/*.deb; do
    case "$package" in
      */linux-image*) dpkg -x "$package" "$CACHE/kernel" ;;
      *) dpkg -x "$package" "$CACHE/extra" ;;
    esac || return 1
  done
  rm -r "$CACHE/packages"
  merge_usr && touch "$CACHE/filled"
}

# Where /bin is a link to usr/bin on the host, a folder of that name in the layer would hide it.
merge_usr() {
  local folder
  for folder in bin sbin lib lib64; do
    [ -d "$CACHE/extra/$folder" ] && [ ! -L "$CACHE/extra/$folder" ] || continue
    mkdir -p "$CACHE/extra/usr/$folder"
    cp -a "$CACHE/extra/$folder/." "$CACHE/extra/usr/$folder/" && rm -r "$CACHE/extra/$folder" || return 1
  done
}

# Returns: where a program is, in the packages or on the host.
program() {
  ls "$CACHE/extra/usr/bin/$1" "$CACHE/extra/usr/sbin/$1" 2>/dev/null | grep . || command -v "$1"
}

write_boot_script() {
  {
    echo '#!/bin/bash'
    echo "export PATH=$(printf %q "$PATH") HOME=/root TERM=dumb RADIX_TEST_RDMA_DEVICE=rxe0 RADIX_TEST_RDMA_LINK=dummy0 PYTHONDONTWRITEBYTECODE=1"
    echo 'ip link set lo up'
    echo 'ip link add dummy0 type dummy && ip link set dummy0 mtu 4200 up'
    echo 'for i in 1 2 3 4; do ip addr add 10.77.0.$i/24 dev dummy0; done'
    echo 'rdma link add rxe0 type rxe netdev dummy0 || echo "[vm] there is no rxe0"'
    echo 'ulimit -l unlimited'
    echo 'read -r up _ </proc/uptime; echo "[vm] ready after $up s: $(rdma link | head -1)"'
    echo "cd $(printf %q "$PWD")"
    printf '%q ' "$@"
    echo
    echo 'status=$?; read -r up _ </proc/uptime; echo "[vm] ended with $status after $up s"'
    echo 'echo o >/proc/sysrq-trigger; sleep 60'
  } >"$BOOT/script"
}

share() {
  printf '%s\n' -fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap,readonly=on" \
    -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
}

# The kernel copies 8 bytes at a time when it may not use byte-wise string instructions, which this
# emulator, unlike a CPU, does byte by byte: no NIC tears an aligned word.
boot() {
  local usr="$CACHE/extra/usr" arguments
  mapfile -t arguments < <(share host / && share extra "$CACHE/extra" && share boot "$BOOT")
  LD_LIBRARY_PATH="$usr/lib/x86_64-linux-gnu" timeout "$LIMIT" "$(program qemu-system-x86_64)" \
    -L "$usr/share/qemu" -L "$usr/share/seabios" -L "$usr/lib/ipxe/qemu" -L /usr/share/qemu \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -machine q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m "$MEMORY" \
    -kernel "$KERNEL" -initrd "$BOOT/initramfs" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr" "${arguments[@]}" </dev/null
}

[ "$(uname -m)" = x86_64 ] || skip "it is made for x86_64 hosts"
[ "$(id -u)" = 0 ] || skip "this needs root, to unpack packages and to share all files"
command -v apt-get >/dev/null || skip "this needs apt-get, for a Debian kernel"
[ -e "$CACHE/filled" ] || fill_cache || skip "apt-get did not give the packages"
KERNEL=$(ls "$CACHE"/kernel/boot/vmlinuz-* | tail -1)

BOOT=$(mktemp -d)
trap 'rm -rf "$BOOT"' EXIT
# shellcheck disable=SC2086  # one word per module
python3 "$HERE/rdma_vm_initramfs.py" "$CACHE/kernel/lib/modules/${KERNEL##*/vmlinuz-}" \
  "$(program busybox)" "$HERE/rdma_vm_init.sh" "$BOOT/initramfs" $MODULES
write_boot_script "$@"
status=0
boot | tee "$BOOT/console" || status="${PIPESTATUS[0]}"
[ "$status" != 124 ] || { echo "the RDMA machine did not end within $LIMIT s" >&2; exit 124; }
status=$(sed -n 's/^\[vm\] ended with \([0-9]*\) after .*/\1/p' "$BOOT/console" | tail -1)
[ -n "$status" ] || { echo "the RDMA machine did not come up, or broke down" >&2; exit 97; }
exit "$status"
