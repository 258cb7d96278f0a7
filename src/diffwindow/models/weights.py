"""Weight files (safetensors with the model's config in their header) and the manifest of their hashes."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffwindow.files import check_regular, finite, flush, naming, read_json, replacing, sha256_of, write_json

WEIGHTS = "model.safetensors"
MODEL_MANIFEST = "checkpoint.json"
MANIFEST_FORMAT = 1


class ModelFileError(ValueError):
    """A model file or folder that cannot be used, and why, in one sentence."""


class CheckpointError(ValueError):
    """A checkpoint whose files are not as they were written."""


class FormatError(ValueError):
    """A checkpoint in the format of another version."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None) -> None:
    """Write tensors and texts for the header to a safetensors file; an error of the disk names it."""
    with replacing(path) as temporary:
        try:
            save_file({name: x.detach().contiguous() for name, x in tensors.items()}, temporary, header)
        except SafetensorError as error:
            if not (number := re.search(r"os error (\d+)", str(error))):
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(temporary)) from None


def read_weights(path: Path, *, containing: str = "") -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of a file with this text in their names, and the config in its header, if any."""
    with _open_weights(path) as file:
        names = [name for name in file.keys() if containing in name]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}, _config(file)


def check_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], model: str) -> None:
    """Raise unless a file has the tensors that a model needs, with the same names and shapes."""
    for verb, names in (("lacks", wanted.keys() - found.keys()), ("has", found.keys() - wanted.keys())):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            needed = f"that {model} needs" if verb == "lacks" else f"that {model} has no place for"
            raise ModelFileError(f"{path} {verb} the tensor {min(names)!r}{more} {needed}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape or not tensor.is_floating_point():
            raise ModelFileError(
                f"{name!r} of {path} is {tensor.dtype} {list(tensor.shape)}, "
                f"where {model} needs floats {list(wanted[name].shape)}"
            )


def hash_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """Hash the names, shapes and all values of tensors; floats are rounded to `dtype` if that is given."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {list(tensor.shape)}".encode())
        rounded = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        values = rounded.detach().cpu().contiguous()
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def average_weights(paths: Sequence[Path]) -> tuple[dict[str, Tensor], str | None]:
    """Average files tensor by tensor, so that memory holds one model however many there are.

    The sum is taken in fp32 or more, and the average has the type of the first file.
    """
    if not paths:
        raise ModelFileError("there is nothing to average; name at least one file or folder")
    with _open_weights(paths[0]) as file:
        names, config = list(file.keys()), _config(file)
        total = {name: _summand(paths[0], file, name) for name in names}
        dtypes = {name: file.get_tensor(name).dtype for name in names}
    for path in paths[1:]:
        with _open_weights(path) as file:
            if _config(file) != config or set(file.keys()) != set(names):
                raise ModelFileError(
                    f"{path} is not of the same model as {paths[0]}; they cannot be averaged"
                )
            for name in names:
                summand = _summand(path, file, name)
                if summand.shape != total[name].shape:
                    raise ModelFileError(
                        f"{name} is {list(summand.shape)} in {path}, {list(total[name].shape)} in {paths[0]}"
                    )
                total[name] += summand
    return {name: (x / len(paths)).to(dtypes[name]) for name, x in total.items()}, config


def write_manifest(folder: Path, state: dict[str, Any], names: Collection[str] | None = None) -> None:
    """Hash the files of a folder, or those of `names` that are there, and write its manifest."""
    listed = (path.name for path in folder.iterdir()) if names is None else names
    files = [name for name in sorted(listed) if name != MODEL_MANIFEST and (folder / name).is_file()]
    hashes = {name: sha256_of(folder / name) for name in files}
    manifest = {"format": MANIFEST_FORMAT, "files": hashes, "state": finite(state)}
    write_json(folder / MODEL_MANIFEST, manifest | {"sha256": _digest(manifest)})


def write_folder(folder: Path, write_files: Callable[[Path], None], state: dict[str, Any]) -> None:
    """Write files and their manifest to a new folder beside `folder`, then rename it to `folder`.

    `write_files` is given the new folder, and flushes each file to disk, as `replacing` does.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with naming(folder, temporary):
            temporary.mkdir(parents=True)
            write_files(temporary)
            write_manifest(temporary, state)
            flush(temporary)
        _rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _rename(temporary: Path, folder: Path) -> None:
    """Replace a folder by the temporary one: move the old one aside first, and remove it last."""
    old = folder.with_name(f".{folder.name}.old")
    _remove(old)
    if folder.exists() or folder.is_symlink():
        folder.rename(old)
    temporary.rename(folder)
    flush(folder.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def verify(folder: Path) -> dict[str, Any]:
    """Check a folder's files against its manifest, and return its plain state."""
    path = folder / MODEL_MANIFEST
    try:
        manifest = read_json(path)
        said = manifest.pop("sha256")
        files, version, state = dict(manifest["files"]), manifest["format"], dict(manifest["state"])
        digest = _digest(manifest)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MODEL_MANIFEST}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path} is damaged") from None
    if said != digest:
        raise CheckpointError(f"{path} is damaged")
    if version != MANIFEST_FORMAT:
        raise FormatError(
            f"{folder} has format {version}, but this version of diffwindow reads {MANIFEST_FORMAT}; "
            "go on with the version that wrote it"
        )
    for name, expected in files.items():
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing")
        if sha256_of(folder / name) != expected:
            raise CheckpointError(f"{folder / name} is damaged")
    return state


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _summand(path: Path, file: Any, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(name)
    if not tensor.is_floating_point():
        raise ModelFileError(f"{name} of {path} is {tensor.dtype}, which has no average")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


def _config(file: Any) -> str | None:
    metadata: dict[str, str] | None = file.metadata()
    return (metadata or {}).get("config")


@contextmanager
def _open_weights(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raise if it is missing, truncated or something else."""
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}") from None
    except SafetensorError as error:
        raise ModelFileError(
            f"{path} is not a complete safetensors file ({error}); copy or save it again"
        ) from None
