"""How a scan is divided among vectors and threads."""

import ctypes
import itertools
import re
from pathlib import Path

import pytest

from keras_coffee.backend.cpu import blocks, compiler
from keras_coffee.backend.cpu.blocks import Blocks, Sizes


def test_sizes_are_the_structure_of_the_header():
    header = (Path(compiler.__file__).parent / "common.h").read_text()
    body = re.search(r"typedef struct {([^}]*)} sizes;", header)[1]
    names = re.findall(r"\w+", body.replace("int64_t", ""))
    assert names == [name for name, _ in Sizes._fields_]
    assert ctypes.sizeof(Sizes) == 8 * len(names)


SHAPES = list(itertools.product((1, 2, 7, 300), (1, 3, 16, 128, 129, 1000), (1, 2, 8, 500)))


def test_blocks_cover_every_feature_of_every_sequence_once():
    for (batch, dim, states), has_rows in itertools.product(SHAPES, (False, True)):
        b = Blocks(batch, 5, dim, states, 1, has_rows)
        assert (b.rows - 1) * b.sequences < batch <= b.rows * b.sequences
        assert (b.columns - 1) * b.features < dim <= b.columns * b.features
        assert b.sequences * b.features <= 128


def test_one_sequence_in_a_block_whose_features_share_numbers_and_fill_vectors():
    assert Blocks(300, 5, 16, 8, 1).sequences == 2
    assert Blocks(300, 5, 16, 8, 1, has_rows=True).sequences == 1
    # A vector that is half empty costs more.
    assert Blocks(300, 5, 8, 8, 1, has_rows=True).sequences == 4
    assert Blocks(300, 5, 32, 1, 1, has_rows=True).sequences == 4


@pytest.mark.parametrize("shape", [(0, 5, 3, 2), (4, 5, 0, 2), (4, 5, 3, 0)], ids=str)
def test_blocks_of_nothing(shape):
    b = Blocks(*shape, 1)
    assert b.kept == 0
    assert (b.rows == 0) == (b.batch == 0) and (b.columns == 0) == (b.dim == 0)


@pytest.mark.parametrize(("keep", "chunks"), [(0, 0), (1, 7), (2, 4), (3, 3), (7, 1), (100, 1)])
def test_states_that_are_kept(keep, chunks):
    assert Blocks(2, 7, 3, 4, keep).kept == chunks * 2 * 3 * 4


def runs(b, threads):
    """The ranges of blocks that a run hands out."""
    ranges = []

    def kernel(sizes, arrays):
        own = {name: getattr(sizes._obj, name) for name, _ in Sizes._fields_}
        ranges.append((own.pop("first"), own.pop("last")))
        assert own == {name: getattr(b, name) for name in own}
        assert list(arrays) == [None, 64]
        return 0

    b.run(kernel, [None, 64], threads)
    return sorted(ranges)


def test_threads_share_the_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    b = Blocks(70, 5, 16, 8, 1)
    for threads in (1, 2, 3, 7, 10**6):
        bounds = list(itertools.chain(*runs(b, threads)))
        assert len(bounds) == 2 * min(threads, b.rows)
        assert bounds[0] == 0 and bounds[-1] == b.rows
        assert bounds[1:-1:2] == bounds[2::2]


@pytest.mark.parametrize("dim", [16, 131])
def test_a_part_of_a_sum_is_of_one_thread(dim, monkeypatch):
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    b = Blocks(501, 5, dim, 8, 1)
    assert b.together > 1
    ranges = runs(b, 10**6)
    assert len(ranges) == b.parts <= 64
    assert [first for first, _ in ranges] == [k * b.together * b.columns for k in range(b.parts)]
    assert ranges[-1][1] == b.rows * b.columns


def test_little_work_takes_no_second_thread():
    b = Blocks(70, 5, 16, 8, 1)
    assert runs(b, 8) == [(0, b.rows)]
    assert runs(Blocks(0, 5, 16, 8, 1), 8) == [(0, 0)]


@pytest.mark.parametrize("threads", [1, 2])
def test_no_memory_is_an_error(monkeypatch, threads):
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    with pytest.raises(MemoryError, match="No memory for 1 states of"):
        Blocks(70, 5, 16, 8, 1).run(lambda sizes, _: sizes._obj.first == 0, [], threads)
