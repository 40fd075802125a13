"""The digest that a tile file carries: it covers the source of every kernel."""

import shutil

import pytest

from flashsign.tuning.tile_file import KERNELS, kernel_digest, kernel_sources


def test_the_digest_covers_every_file_below_the_kernels_folder():
    below = sorted(path for path in KERNELS.glob("**/*") if path.suffix == ".py")
    assert kernel_sources() == below
    named = {path.relative_to(KERNELS).as_posix() for path in below}
    assert named >= {"streaming/forward.py", "moments/calls.py", "small_bags.py", "common/launch.py"}


@pytest.mark.parametrize("name", [path.relative_to(KERNELS).as_posix() for path in kernel_sources()])
def test_one_changed_byte_of_any_file_changes_the_digest(tmp_path, name):
    folder = tmp_path / "triton"
    shutil.copytree(KERNELS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = kernel_digest(folder)
    assert before == kernel_digest()
    path = folder / name
    source = bytearray(path.read_bytes())
    source[len(source) // 2] ^= 1
    path.write_bytes(source)
    assert kernel_digest(folder) != before


def test_a_folder_without_source_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no kernel source below"):
        kernel_digest(tmp_path)
