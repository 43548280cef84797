"""Which cuDNN Transformer Engine would take, on machines laid out in a folder."""

from pathlib import Path

from fp8migrate.worker.cudnn import decoded, find_cudnns


def put(folder: Path, version: str) -> Path:
    """A cuDNN as its packages lay it out: the file, and links without the number."""
    folder.mkdir(parents=True)
    (folder / f"libcudnn.so.{version}").touch()
    (folder / "libcudnn.so.9").symlink_to(folder / f"libcudnn.so.{version}")
    (folder / "libcudnn.so").symlink_to(folder / "libcudnn.so.9")
    return folder


def wheel(site: Path, version: str) -> Path:
    (site / "nvidia" / "cudnn" / "lib").mkdir(parents=True)
    (site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").touch()
    described = site / f"nvidia_cudnn_cu13-{version}.56.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-cudnn-cu13\nVersion: {version}.56\n")
    return site / "nvidia" / "cudnn"


def test_the_wheel_comes_last(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    mine = wheel(site, "9.19.0")
    system, named = put(tmp_path / "lib", "9.14.0"), put(tmp_path / "cuda" / "lib64", "9.10.2")
    found = find_cudnns({"CUDA_HOME": str(tmp_path / "cuda")}, tmp_path / "none", (str(system),), site)
    assert [(each.version, each.found_by, each.folder) for each in found] == [
        ("9.10.2", "CUDA_HOME", str(tmp_path / "cuda")),
        ("9.14.0", "the system's libraries", str(system)),
        ("9.19.0", "wheel", str(mine)),
    ]
    assert [each.torchs for each in found] == [False, False, True]
    assert found[0].path == str(named / "libcudnn.so.9.10.2")


def test_cudnn_path_mends_it(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    mine = wheel(site, "9.19.0")
    system = put(tmp_path / "lib", "9.14.0")
    found = find_cudnns({"CUDNN_PATH": str(mine)}, tmp_path / "none", (str(system),), site)
    assert [(each.found_by, each.torchs, each.version) for each in found] == [
        ("CUDNN_PATH", True, "9.19.0"),
        ("the system's libraries", False, "9.14.0"),
    ]
    assert Path(found[0].path) == mine / "lib" / "libcudnn.so.9"


def test_ld_library_path_is_asked_for_the_name_without_a_number(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcudnn.so.9").touch()
    variables = {"LD_LIBRARY_PATH": f":{folder}"}
    assert find_cudnns(variables, tmp_path / "none", (), tmp_path) == ()
    (folder / "libcudnn.so").symlink_to(folder / "libcudnn.so.9")
    assert [each.found_by for each in find_cudnns(variables, tmp_path / "none", (), tmp_path)] == ["LD_LIBRARY_PATH"]


def test_versions_as_cudnn_encodes_them() -> None:
    assert (decoded(91900), decoded(91002), decoded(8907)) == ("9.19.0", "9.10.2", "8.9.7")
