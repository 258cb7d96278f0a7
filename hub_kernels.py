"""Make a folder in the layout of Hugging Face's `kernels` package from a wheel: the operations, alone.

    python hub_kernels.py dist/diffwindow-*-manylinux*.whl --out hub

The folder has a build variant for CPUs, with the compiled libraries of a platform wheel (any torch from 2.9
on, because they are not linked with it), and one for GPUs with the Triton kernels, which are Python.
`kernels.get_local_kernel(Path("hub"))` loads it, and the module has what `diffwindow.ops` has.
"""

import argparse
import ast
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE, MAIN = "diffwindow", "ops"
# the names that the loaded module has
PUBLIC = ("Boundaries", "interval_attention", "window_attention", "window_maps")
# the oldest torch that is supported, as a variant names it
TORCH = "torch-stable-abi29"
PLATFORMS = {
    r"manylinux\w*_x86_64": "x86_64-linux",
    r"manylinux\w*_aarch64": "aarch64-linux",
    r"macosx\w*_arm64": "aarch64-darwin",
}
# stands in for jaxtyping, which the hub's environments do not have: a shape is documentation there
SHAPES = '''"""Shapes as types, unchecked: Float[Tensor, "b h q k"] is a Tensor."""


class Shaped:
    """The type of a tensor whose shape is written beside it."""

    def __class_getitem__(cls, item):
        return item[0]


Bool = Float = Int = Shaped
'''


def collect(sources: dict[str, str]) -> dict[str, str]:
    """Return the modules that the operations import, directly or not, by their paths in the package."""
    wanted, found = [f"{MAIN}.py"], {}
    while wanted:
        path = wanted.pop()
        if path in found or path not in sources:
            continue
        found[path] = sources[path]
        for node in ast.walk(ast.parse(sources[path])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                parts = str(node.module).split(".")[1:]
                names = [parts, *([*parts, alias.name] for alias in node.names)]
                wanted += ["/".join(name) + ".py" for name in names if name]
                wanted += ["/".join([*name, "__init__.py"]) for name in names if name]
    return found


def relocate(path: str, source: str, namespace: str) -> str:
    """Make the imports of a module relative, and its operators those of a namespace of their own."""
    dots = "." * len(PurePosixPath(path).parts)
    source = re.sub(rf"(?m)^(\s*)from {PACKAGE}(?:\.(\S+))? import", rf"\1from {dots}\2 import", source)
    source = re.sub(r"(?m)^from jaxtyping import", f"from {dots}shapes import", source)
    return source.replace(f'NAMESPACE = "{PACKAGE}"', f'NAMESPACE = "{namespace}"')


def read_wheel(path: Path) -> dict[str, bytes]:
    """Return the files of the package in a wheel, by their paths in it."""
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{PACKAGE}/")]
        return {name.removeprefix(f"{PACKAGE}/"): wheel.read(name) for name in names}


def write_variant(folder: Path, files: dict[str, bytes], backend: str, version: int) -> None:
    """Write a build variant: modules, metadata and, for CPUs, libraries with the sources that name them."""
    sources = {name: content.decode() for name, content in files.items() if name.endswith(".py")}
    digest = hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()[:12]
    namespace = f"{PACKAGE}_{backend}_{digest}"
    written = {name: relocate(name, source, namespace).encode() for name, source in collect(sources).items()}
    exports = "".join(f"    {name!r},\n" for name in PUBLIC).replace("'", '"')
    written["__init__.py"] = (
        '"""Attention with learned windows."""\n\n'
        f"from .{MAIN} import {', '.join(PUBLIC)}\n\n__all__ = [\n{exports}]\n"
    ).encode()
    written["shapes.py"] = SHAPES.encode()
    if backend == "cpu":
        written |= {name: files[name] for name in files if name.startswith(("kernels/lib/", "kernels/csrc/"))}
    metadata = {
        "id": namespace,
        "name": PACKAGE,
        "version": version,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
    }
    written["metadata.json"] = (json.dumps(metadata, indent=2) + "\n").encode()
    for name, content in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main() -> None:
    """Write the variants of each wheel, and that of Triton once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+", help="platform wheels, one for each system")
    parser.add_argument("--out", type=Path, default=Path("hub"), help="the folder to write")
    parser.add_argument("--version", type=int, default=1, help="the version of the kernel on the hub")
    given = parser.parse_args()
    for wheel in given.wheels:
        files = read_wheel(wheel)
        system = next((name for tag, name in PLATFORMS.items() if re.search(tag, wheel.name)), None)
        if system is None or not any(name.startswith("kernels/lib/") for name in files):
            sys.exit(f"{wheel} has no libraries; build it with DIFFWINDOW_BUILD_KERNELS=1")
        variants = {f"{TORCH}-cpu-{system}": "cpu", "torch-cuda": "cuda"}
        for variant, backend in variants.items():
            write_variant(given.out / "build" / variant, files, backend, given.version)
            print(f"wrote {given.out / 'build' / variant}")


if __name__ == "__main__":
    main()
