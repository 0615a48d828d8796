# Installs the archive of `cargo xtask dist`, which lies in the directory from which Spack is called.
import os
import platform

from spack.package import *

try:
    from spack_repo.builtin.build_systems.generic import Package
except ImportError:
    # Before Spack 1.0, the line above has imported it.
    pass

# SHA-256 of the archive for each machine.
ARCHIVES = {
    @ARCHIVES@
}


class NodeProfiler(Package):
    """@DESCRIPTION@"""

    manual_download = True

    if platform.machine() in ARCHIVES:
        version(
            "@VERSION@",
            sha256=ARCHIVES[platform.machine()],
            url=f"file://{os.getcwd()}/profiler-@VERSION@-{platform.machine()}-linux.tar.xz",
        )

    def install(self, spec, prefix):
        install_tree(".", prefix)
