#!/bin/sh
# Loads the module file of the archive with Environment Modules and with Lmod.
#
#   module.sh DIRECTORY MODULES     the unpacked archive; the unpacked package of Environment Modules
set -eu

root=$1
modules=$2
export MODULEPATH="$root/share/modulefiles"
check() {
    unset MANPATH LOADEDMODULES _LMFILES_
    eval "$("$@" sh load profiler)"
    [ "$(command -v profiler)" = "$root/bin/profiler" ] || {
        echo "packages: FAILED: $1 does not find the program" >&2
        exit 1
    }
    profiler --version >/dev/null
    case ${MANPATH:-} in *"$root/share/man"*) ;; *)
        echo "packages: FAILED: $1 does not find the manual pages" >&2
        exit 1
        ;;
    esac
    echo "packages: module file: $1"
}
(check tclsh "$modules"/usr/lib/*/modulecmd.tcl)
(check /usr/share/lmod/lmod/libexec/lmod)
