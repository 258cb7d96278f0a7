"""Compile the kernels into the wheel when DIFFWINDOW_BUILD_KERNELS=1; otherwise the wheel is pure Python."""

import os
import platform
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsBuildHook(BuildHookInterface):
    """Add a library per level of the processor family, and the platform's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a compiler that cannot is an error here, since the wheel was asked to hold kernels."""
        if os.environ.get("DIFFWINDOW_BUILD_KERNELS", "0") != "1" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from diffwindow.kernels import toolchain

        self.folder = tempfile.TemporaryDirectory()
        contents = b""
        for level in toolchain.wheel_levels():
            library = Path(self.folder.name) / f"{level.name}.so"
            toolchain.compile_library(library, (*toolchain.FLAGS, *level.flags))
            contents += library.read_bytes()
            name = toolchain.file_name(toolchain.stem(level), toolchain.digest_of(library))
            build_data["force_include"][str(library)] = f"diffwindow/kernels/lib/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(contents)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries that are in the wheel now."""
        if hasattr(self, "folder"):
            self.folder.cleanup()


def platform_tag(libraries: bytes) -> str:
    """Return the tag of machines that can load these libraries, on Linux by the newest glibc symbol."""
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", libraries)]
    if sys.platform == "linux" and needed:
        return f"manylinux_2_{max(17, *needed)}_{platform.machine()}"
    return re.sub(r"[-.]", "_", sysconfig.get_platform())
