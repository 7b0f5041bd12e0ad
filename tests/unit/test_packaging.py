# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The front door, the metadata, and the checks that `make test` relies on: each must catch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from radixshmem_core.cluster.planes import usable_backends

_ROOT = Path(__file__).parent.parent.parent


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(program: str, cwd: Path) -> str:
    return _output([sys.executable, "-c", program], cwd)


def _output(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---------------------------------------------------------------- front door


def test_front_door_has_every_public_name(tmp_path: Path) -> None:
    wanted = {
        "COMPONENT_MASK_FULL",
        "COMPONENT_MASK_MAMBA",
        "COMPONENT_MASK_SWA",
        "AuxResult",
        "ComponentType",
        "Geometry",
        "GeometryMismatch",
        "InsertError",
        "InsertResult",
        "PullJob",
        "PullResult",
        "QueryResult",
        "RadixClient",
        "RadixError",
        "RadixServer",
        "ServerConfig",
        "ServerNotReady",
        "SlotPoolConfig",
        "SlotStore",
        "SlotStoreConfig",
        "__version__",
        "compute_hashes",
        "fold_page_keys",
    }
    program = "import radixshmem as r; print(*[n for n in r.__all__ if hasattr(r, n)])"
    assert wanted <= set(_run(program, tmp_path).split())


def test_package_runs_as_the_server_command(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "radixshmem", "check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 2
    assert "radix-server check: error: " not in result.stderr
    assert "check needs the name of a server" in result.stderr


def test_import_loads_no_engine_and_no_optional_package(tmp_path: Path) -> None:
    program = "import sys, radixshmem; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(_run(program, tmp_path).split())
    assert "radixshmem_core" in loaded
    assert not loaded & {"torch", "vllm", "sglang", "nixl", "mooncake", "etcd3gw", "matplotlib"}


def test_source_folder_before_the_installed_package_is_told(tmp_path: Path) -> None:
    for package in ("radixshmem", "radixshmem_core"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=ignored)
    # -S: without the editable install, whose finder comes first.
    result = subprocess.run(
        [sys.executable, "-S", "-c", "import radixshmem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert f"{tmp_path}/radixshmem_core has no compiled core" in result.stderr
    assert "Run it from another folder" in result.stderr


def test_transfer_backends_are_the_usable_ones_and_load_no_engine(tmp_path: Path) -> None:
    program = "import sys, radixshmem as r; print(*r._data.TRANSFER_BACKENDS, '|', *sys.modules)"
    backends, modules = _run(program, tmp_path).split("|")
    assert tuple(backends.split()) == usable_backends()
    assert not {name.split(".")[0] for name in modules.split()} & {"mooncake", "nixl_cu12"}


def test_version_of_package_and_metadata_agree(tmp_path: Path) -> None:
    program = (
        "import importlib.metadata as m, radixshmem_core._version as v\n"
        "print(v.__version__, m.version('radixshmem'))"
    )
    own, installed = _run(program, tmp_path).split()
    assert own == installed
    assert re.fullmatch(r"\d+\.\d+\.\d+", own)
    changelog = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(own)}\b", changelog, re.MULTILINE)


# ---------------------------------------------------------------- scripts/check_includes.py


def _tree(root: Path, files: dict[str, str]) -> Path:
    readme = "# rooms\n\n```\nbase < {hash, layout} < tree < bindings\n```\n"
    cmake = "set(RADIX_ROOMS base hash layout tree)\n"
    for name, text in {"csrc/README.md": readme, "CMakeLists.txt": cmake, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_include_check_accepts_rooms_in_order(tmp_path: Path) -> None:
    files = {
        "csrc/base/a.h": "#include <vector>\n",
        "csrc/hash/b.h": '#include "base/a.h"\n#include "hash/c.h"\n#include "xxhash/xxhash.h"\n',
        "csrc/tree/t.cc": '#include "hash/b.h"\n#include "layout/l.h"\n',
        "csrc/bindings/m.cc": '#include <pybind11/pybind11.h>\n#include "tree/t.h"\n',
        "csrc/tests/base/a_test.cc": '#include "tree/t.h"\n',
    }
    assert _script("check_includes").check(_tree(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("file", "include", "message"),
    [
        ("base/a.h", '"tree/t.h"', "base/ includes tree/t.h, which is not before it"),
        ("hash/b.cc", '"layout/l.h"', "hash/ includes layout/l.h, which is not before it"),
        ("tree/deep/x.h", '  "bindings/m.h"', "tree/ includes bindings/m.h"),
        ("tree/t.cc", "<pybind11/pybind11.h>", "only bindings/ may"),
        ("tree/t.cc", "<Python.h>", "only bindings/ may"),
        ("bindings/m.cc", "<torch/extension.h>", "nothing in csrc may"),
        ("tree/t.cc", '"t.h"', "write the path from csrc on"),
        ("tree/t.cc", '"../base/a.h"', "write the path from csrc on"),
        ("cellar/c.cc", "<vector>", "not in the order of csrc/README.md"),
    ],
)
def test_include_check_catches(tmp_path: Path, file: str, include: str, message: str) -> None:
    root = _tree(tmp_path, {f"csrc/{file}": f"#pragma once\n#include {include}\n"})
    problems = _script("check_includes").check(root)
    assert len(problems) == 1
    assert message in problems[0]


def test_include_check_catches_another_order_in_cmake(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"CMakeLists.txt": "set(RADIX_ROOMS base tree hash layout)\n"})
    assert "RADIX_ROOMS" in _script("check_includes").check(root)[0]


def test_rooms_of_this_tree_are_in_order() -> None:
    assert _script("check_includes").check(_ROOT) == []


# ---------------------------------------------------------------- scripts/check_spdx.py


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# SPDX-License-Identifier: Apache-2.0\n# Copyright The radixshmem authors\n", True),
        ("// SPDX-License-Identifier: Apache-2.0\n// Copyright The radixshmem authors\n", True),
        (
            "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
            "# Copyright The radixshmem authors\n",
            True,
        ),
        ("# SPDX-License-Identifier: Apache-2.0\n", False),
        ("\n# SPDX-License-Identifier: Apache-2.0\n# Copyright The radixshmem authors\n", False),
        ("# SPDX-License-Identifier: MIT\n# Copyright The radixshmem authors\n", False),
        ("import os\n", False),
    ],
)
def test_licence_lines(text: str, expected: bool) -> None:
    assert _script("check_spdx").has_lines(text) is expected


def test_licence_check_names_the_file(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    (tmp_path / "bad.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("no lines needed\n", encoding="utf-8")
    problems = _script("check_spdx").check(tmp_path)
    assert len(problems) == 1
    assert problems[0].startswith("bad.py: ")


# ---------------------------------------------------------------- the guard against new skips


@pytest.mark.parametrize(
    ("allowed", "code"), [("# none\n", 1), ("test_x.py::test_skips\n", 0), ("test_y.py\n", 1)]
)
def test_a_skip_that_is_not_listed_fails_the_run(tmp_path: Path, allowed: str, code: int) -> None:
    shutil.copy(_ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "allowed_skips.txt").write_text(allowed, encoding="utf-8")
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "@pytest.mark.xfail\n"
        "def test_known(): assert False\n"
        "def test_skips(): pytest.skip('no engine')\n",
        encoding="utf-8",
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == code, result.stdout
    assert ("skips not listed" in result.stdout) is (code == 1)


def test_every_allowed_skip_is_a_test_that_exists() -> None:
    lines = (_ROOT / "tests" / "allowed_skips.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            file, _, test = line.partition("::")
            text = (_ROOT / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, line


# ---------------------------------------------------------------- the stamps of the Makefile

# Saves a source file while it "installs": with a time that is newer than anything before.
_SAVING_PIP = """#!/bin/sh
echo installed >>log
touch old
until [ csrc/a.cc -nt old ]; do touch csrc/a.cc; done
"""


def _make(folder: Path) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # not a part of ours
    return _output(["make", "VENV=venv", "venv/stamps/installed"], folder, env)


def test_a_source_saved_during_the_install_is_installed_by_the_next_make(tmp_path: Path) -> None:
    shutil.copy(_ROOT / "Makefile", tmp_path)
    for name in ("CMakeLists.txt", "csrc/a.cc", "cmake/b.cmake", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scripts, pip = tmp_path / "scripts" / "setup_system.sh", tmp_path / "venv" / "bin" / "pip"
    for path in (scripts, pip, tmp_path / "venv" / "stamps" / "venv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    pip.write_text(_SAVING_PIP, encoding="utf-8")
    pip.chmod(0o755)
    said = _make(tmp_path)
    assert len(said.splitlines()) == 1, said
    assert "compiling the extension" in said
    pip.write_text("#!/bin/sh\necho installed >>log\n", encoding="utf-8")
    _make(tmp_path)  # takes what was saved
    assert _make(tmp_path).strip().endswith("is up to date.")
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["installed"] * 2
