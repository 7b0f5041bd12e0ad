# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Checks the radixshmem of the running interpreter: an installed wheel, seen from another folder.

Usage: cd /elsewhere && VENV_OF_THE_WHEEL/bin/python check_wheel.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

# Never imported by `import radixshmem`.
_ENGINES = {"torch", "vllm", "sglang", "nixl", "mooncake", "etcd3gw", "matplotlib"}
_PLUGINS = {"vllm.general_plugins": "vllm_offload", "sglang.srt.plugins": "sglang_hicache"}


def main() -> int:
    import radixshmem
    import radixshmem_core

    site = Path(sysconfig.get_path("platlib"))
    for package in (radixshmem, radixshmem_core):
        assert site in Path(str(package.__file__)).parents, f"{package.__file__} is not in {site}"
        assert importlib.resources.files(package).joinpath("py.typed").is_file(), package
    assert importlib.resources.files(radixshmem_core).joinpath("_core.pyi").is_file()
    assert radixshmem.__version__ == importlib.metadata.version("radixshmem")
    for name in radixshmem.__all__:
        assert hasattr(radixshmem, name), name
    assert radixshmem._data.TRANSFER_BACKENDS == ("builtin",), "no engine is here"
    assert radixshmem.compute_hashes([12345], 1).tolist() == [0x23A86B84714E7D43]
    assert not radixshmem_core._core.FAULT_POINTS, "a released wheel has no fault points"
    for group, adapter in _PLUGINS.items():
        module = f"radixshmem.integrations.{adapter}"
        assert importlib.util.find_spec(module), f"no {module}"
        (plugin,) = importlib.metadata.entry_points(group=group, name="radixshmem")
        assert plugin.value == f"{module}.plugin:register", plugin
    loaded = _ENGINES & set(sys.modules)
    assert not loaded, f"import radixshmem imported {loaded}"
    server = Path(sys.executable).parent / "radix-server"
    subprocess.run([server, "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    print(f"wheel: radixshmem {radixshmem.__version__} works from {Path.cwd()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
