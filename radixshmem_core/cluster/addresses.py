# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The address at which peers reach this node: the only one that it listens at."""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import socket
import struct
from pathlib import Path

__all__ = ["is_loopback", "own_address"]

_log = logging.getLogger("radixshmem.cluster")

_LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_ETCD_SCHEME = "etcd://"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6


def own_address(registry: str, rpc_address: str, rpc_interface: str) -> str:
    """A numeric address. ValueError names the option when there is none that peers could reach."""
    if rpc_interface:
        address = _address_of_interface(rpc_interface)
    elif rpc_address:
        address = _numeric(rpc_address)
    elif _is_elsewhere(registry):
        raise ValueError(
            f"the registry {registry} is for several machines, but the address at which they reach "
            "this node is not given; give --rpc-address or --rpc-interface"
        )
    else:
        return _LOOPBACK
    if is_loopback(address) and _is_elsewhere(registry):
        _log.warning(
            "peers on other machines cannot reach %s; see --rpc-address and --rpc-interface",
            address,
        )
    return address


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `address` (numeric, or a usual name of loopback)."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address in _LOCAL_NAMES


def _is_elsewhere(registry: str) -> bool:
    """Whether it is an etcd that other machines can reach too."""
    if not registry.startswith(_ETCD_SCHEME):
        return False
    endpoints = registry[len(_ETCD_SCHEME) :].split(",")
    return not all(is_loopback(e.rpartition(":")[0].strip("[]")) for e in endpoints)


def _numeric(rpc_address: str) -> str:
    try:
        found = socket.getaddrinfo(rpc_address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"rpc_address is {rpc_address!r}, which is no address ({error}); give an address of "
            "this machine with --rpc-address"
        ) from error
    address = str(found[0][4][0])
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        raise ValueError(
            f"rpc_address is {rpc_address!r}, which peers cannot reach; give one address of this "
            "machine with --rpc-address, or its interface with --rpc-interface"
        )
    return address


def _address_of_interface(name: str) -> str:
    """Its first IPv4 address, else its first global IPv6 address."""
    known = [interface for _, interface in socket.if_nameindex()]
    if name not in known:
        raise ValueError(
            f"rpc_interface is {name!r}, this machine has {', '.join(known)}; give one of these "
            "with --rpc-interface"
        )
    address = _ipv4_of(name) or _ipv6_of(name)
    if not address:
        raise ValueError(
            f"rpc_interface is {name!r}, which has no address; give it one, or use --rpc-address"
        )
    return address


def _ipv4_of(name: str) -> str:
    request = struct.pack("16s24x", name.encode())  # struct ifreq
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _GET_ADDRESS, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _ipv6_of(name: str) -> str:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        digits, _, _, scope, _, interface = line.split()
        if interface == name and scope == _GLOBAL_SCOPE:
            return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return ""
