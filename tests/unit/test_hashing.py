# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""compute_hashes against committed numbers and against the independent PyPI package xxhash."""

from __future__ import annotations

import array
import enum
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import xxhash

from radixshmem_core import _core
from radixshmem_core.hashing import compute_hashes

_DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]

# (tokens per block, token count, namespace, hashes) for the tokens of `spread_tokens`.
_GOLDEN = [
    (1, 3, b"", [0x23A86B84714E7D43, 0x82EF3266591F80C7, 0x3795688535B9C6EB]),
    (4, 8, b"", [0x70BA8A748A997C9E, 0xF8E7BEEA02F48B7F]),
    (16, 48, b"", [0x192A305D4D38374C, 0xB5781127D2C6A015, 0xA47D619E95AB0007]),
    (16, 32, b"lora-7", [0x14A58AA300A7C2D7, 0xFFB10F8FCBC826CF]),
    (64, 128, b"", [0x13ED111A139EFD67, 0x154CAD3213570E85]),
    (256, 512, b"a\0b", [0xAE4F96915D43F7A5, 0xE9738B2CF30B3247]),
]


def spread_tokens(count: int) -> list[int]:
    return [(i * 2654435761 + 12345) % 2**32 for i in range(count)]


def reference(
    tokens: list[int], tokens_per_block: int, namespace: bytes = b"", parent: int | None = None
) -> list[int]:
    """The definition in api.md's words, on the PyPI package."""
    head = b"radixshmem/1\0" + len(namespace).to_bytes(8, "little") + namespace
    chained = xxhash.xxh3_64_intdigest(head) if parent is None else parent
    hashes = []
    for start in range(0, len(tokens) // tokens_per_block * tokens_per_block, tokens_per_block):
        block = np.array(tokens[start : start + tokens_per_block], dtype="<u4").tobytes()
        chained = xxhash.xxh3_64_intdigest(chained.to_bytes(8, "little") + block)
        hashes.append(chained)
    return hashes


@pytest.mark.parametrize(("block", "count", "namespace", "expected"), _GOLDEN)
def test_golden_vectors(block: int, count: int, namespace: bytes, expected: list[int]) -> None:
    hashes = compute_hashes(spread_tokens(count), block, namespace=namespace)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == expected
    assert reference(spread_tokens(count), block, namespace) == expected


@pytest.mark.parametrize("block", [1, 3, 16, 17, 64, 256, 1000])
def test_equals_the_reference(block: int) -> None:
    tokens = spread_tokens(3000)
    expected = reference(tokens, block)
    assert compute_hashes(np.array(tokens, dtype=np.int64), block).tolist() == expected
    assert compute_hashes(np.array(tokens, dtype=np.uint32), block).tolist() == expected


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_every_dtype_gives_the_same_hashes(dtype: str, order: str) -> None:
    tokens = [i * 37 % 128 for i in range(333)]
    data = np.array(tokens, dtype=order + dtype)
    assert compute_hashes(data, 16).tolist() == reference(tokens, 16)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("step", [2, 3, -1, -2])
def test_any_stride_gives_the_same_hashes(dtype: str, step: int) -> None:
    tokens = np.array([i * 31 % 128 for i in range(300)], dtype=dtype)
    assert (
        compute_hashes(tokens[::step], 16).tolist()
        == reference(tokens[::step].tolist(), 16)
        == compute_hashes(memoryview(tokens)[::step], 16).tolist()
    )


def test_columns_read_only_and_unaligned_arrays() -> None:
    tokens = np.array(spread_tokens(256), dtype=np.int64)
    expected = reference(tokens.tolist(), 16)
    table = np.zeros((256, 3), dtype=np.int64)
    table[:, 1] = tokens
    assert compute_hashes(table[:, 1], 16).tolist() == expected
    tokens.flags.writeable = False
    assert compute_hashes(tokens, 16).tolist() == expected
    raw = np.zeros(1 + 8 * 256, dtype=np.uint8)
    raw[1:] = tokens.view(np.uint8)
    assert compute_hashes(raw[1:].view(np.int64), 16).tolist() == expected


@pytest.mark.parametrize("typecode", "bBhHiIlLqQ")
def test_array_module(typecode: str) -> None:
    tokens = [i % 100 for i in range(64)]
    assert compute_hashes(array.array(typecode, tokens), 16).tolist() == reference(tokens, 16)


def test_sequences() -> None:
    class Token(enum.IntEnum):
        A = 1
        B = 2

    assert compute_hashes(range(40), 16).tolist() == reference(list(range(40)), 16)
    assert compute_hashes((7,) * 16, 16).tolist() == reference([7] * 16, 16)
    assert compute_hashes([Token.A, Token.B], 2).tolist() == reference([1, 2], 2)
    assert compute_hashes([np.int32(4), np.uint64(5)], 2).tolist() == reference([4, 5], 2)
    assert compute_hashes(iter([4, 5]), 2).tolist() == reference([4, 5], 2)
    assert compute_hashes(bytes(range(16)), 16).tolist() == reference(list(range(16)), 16)
    assert compute_hashes([2**32 - 1, 0], 2).tolist() == reference([2**32 - 1, 0], 2)


class TensorLike:
    """As a torch tensor in host memory: no buffer protocol, but __array__."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


def test_tensor_like_is_read_without_a_list() -> None:
    tokens = spread_tokens(64)
    assert compute_hashes(TensorLike(np.array(tokens)), 16).tolist() == reference(tokens, 16)
    with pytest.raises(ValueError, match="1-D array of integers, got 1-D of float32"):
        compute_hashes(TensorLike(np.zeros(16, dtype=np.float32)), 16)


def test_tensor_on_a_device_says_what_to_do() -> None:
    class Device(TensorLike):
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(ValueError, match="Device cannot be read in host memory: can't convert"):
        compute_hashes(Device([1]), 16)


def test_torch_tensor() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tokens = [i % 100 for i in range(64)]
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.int16):
        tensor = torch.tensor(tokens, dtype=dtype)
        assert compute_hashes(tensor, 16).tolist() == reference(tokens, 16)
        assert compute_hashes(tensor[::2], 16).tolist() == reference(tokens[::2], 16)


def test_pieces_equal_the_whole() -> None:
    tokens = np.array(spread_tokens(16 * 40), dtype=np.int64)
    whole = compute_hashes(tokens, 16, namespace=b"x")
    for cut in (1, 7, 39):
        head = compute_hashes(tokens[: 16 * cut], 16, namespace=b"x")
        for parent in (head[-1], int(head[-1]), head.view(np.int64)[-1]):
            tail = compute_hashes(tokens[16 * cut :], 16, namespace=b"ignored", parent=parent)
            assert np.concatenate([head, tail]).tolist() == whole.tolist()


def test_namespaces_are_separate() -> None:
    tokens = spread_tokens(64)
    names = [b"", b"a", b"b", b"a\0", b"\0", b"a" * 1000]
    hashes = [compute_hashes(tokens, 16, namespace=name).tolist() for name in names]
    assert hashes == [reference(tokens, 16, name) for name in names]
    assert len({value for row in hashes for value in row}) == 4 * len(names)


def test_partial_last_block_is_ignored_and_the_array_untouched() -> None:
    tokens = np.array(spread_tokens(47), dtype=np.uint32)
    before = tokens.copy()
    assert compute_hashes(tokens, 16).tolist() == reference(tokens.tolist()[:32], 16)
    assert np.array_equal(tokens, before)
    nothing: list[Any] = [[], np.empty(0, dtype=np.int32), tokens[:15], array.array("i")]
    for empty in nothing:
        hashes = compute_hashes(empty, 16)
        assert hashes.shape == (0,)
        assert hashes.dtype == np.uint64


def test_another_process_gives_the_same_hashes() -> None:
    program = (
        "from radixshmem_core.hashing import compute_hashes\n"
        "t = [(i * 2654435761 + 12345) % 2**32 for i in range(48)]\n"
        "print(*compute_hashes(t, 16).tolist())\n"
    )
    for seed in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert [int(word) for word in out.split()] == _GOLDEN[2][3]


def test_threads_agree() -> None:
    tokens = np.array(spread_tokens(16 * 2000), dtype=np.int64)
    expected = compute_hashes(tokens, 16).tolist()
    results: list[list[int]] = []
    work = [
        threading.Thread(target=lambda: results.append(compute_hashes(tokens, 16).tolist()))
        for _ in range(4)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(timeout=60)
    assert results == [expected] * 4


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", ">i8"])
@pytest.mark.parametrize("position", [0, 15, 16, 40, 49])
def test_negative_token_is_named(dtype: str, position: int) -> None:
    tokens = np.ones(50, dtype=dtype)
    tokens[position] = -3
    with pytest.raises(ValueError, match=rf"token_ids\[{position}\] = -3 is outside \[0, 2\*\*32"):
        compute_hashes(tokens, 16)


@pytest.mark.parametrize("value", [2**32, 2**63 - 1, 2**63, 2**64, 10**30, -1, -(2**70)])
def test_token_outside_the_range_is_named(value: int) -> None:
    with pytest.raises(ValueError, match=rf"token_ids\[2\] = {value} is outside \[0, 2\*\*32"):
        compute_hashes([1, 2, value, 3], 2)
    if -(2**63) <= value < 2**64:
        data = np.array([1, 2, value, 3], dtype=np.int64 if value < 2**63 else np.uint64)
        with pytest.raises(ValueError, match=rf"token_ids\[2\] = {value} is outside"):
            compute_hashes(data, 2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros(16, dtype=bool), "1-D of bool"),
        (np.zeros(16, dtype=np.float64), "1-D of float64"),
        (np.zeros(16, dtype=object), "1-D of object"),
        (np.zeros(16, dtype="datetime64[s]"), "1-D of datetime64"),
        (np.zeros((4, 4), dtype=np.int32), "2-D of int32"),
        (np.int32(4), "0-D"),
        (np.array(4), "0-D of int"),
        (memoryview(np.zeros(16, dtype=bool)), "1-D of bool"),
        (array.array("d", [1.0]), "1-D of float64"),
        ([1, 2.5], r"token_ids\[1\] = 2.5 is not an integer"),
        ([1, None], r"token_ids\[1\] = None is not an integer"),
        ([True, False], r"token_ids\[0\] = True is a bool"),
        ([[1, 2], [3, 4]], r"token_ids\[0\] = \[1, 2\] is not an integer"),
        ([[1, 2], [3]], r"token_ids\[0\] = \[1, 2\] is not an integer"),
        ("text", "got str"),
        (["a"], "'a' is not an integer"),
        (None, "got NoneType"),
        (5, "got int"),
    ],
)
def test_what_is_not_integers_in_one_dimension_is_refused(tokens: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_hashes(tokens, 2)


def test_bad_block_size_namespace_and_parent() -> None:
    for block in (0, -1):
        with pytest.raises(ValueError, match=f"tokens_per_block = {block} must be at least 1"):
            compute_hashes([1], block)
    for parent in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"parent = {parent} is not a 64-bit hash"):
            compute_hashes([1], 1, parent=parent)
    for namespace in ("text", 5):
        with pytest.raises(TypeError, match="namespace must be bytes, got"):
            compute_hashes([1], 1, namespace=namespace)  # type: ignore[arg-type]
    assert compute_hashes([1], 2**62).size == 0


@pytest.mark.parametrize("size", [0, 1, 8, 16, 17, 128, 129, 240, 241, 5000])
def test_hash_bytes_is_xxh3_64(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert _core.hash_bytes(data) == xxhash.xxh3_64_intdigest(data)
    assert _core.hash_bytes(memoryview(data)) == xxhash.xxh3_64_intdigest(data)
