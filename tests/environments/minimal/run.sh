#!/bin/sh
# Runs `.ci/run` on a clean clone in a minimal Debian, in which only the Rust toolchain is from this
# machine: shows what the tests need and do not install.
#
#     tests/environments/minimal/run.sh DIRECTORY [COMMAND…]
#
# As root, whose toolchain it is if CARGO_HOME and RUSTUP_HOME name no other. DIRECTORY is created, and kept
# for another look; COMMAND replaces `.ci/run`. Requires mmdebstrap and a mirror, and takes as long as the
# tests.
set -eu
if [ $# -eq 0 ] || [ "$(id -u)" -ne 0 ]; then
    echo "usage, as root: $0 DIRECTORY [COMMAND…]" >&2
    exit 2
fi
root=$(realpath -m "$1")
shift
checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
: "${CARGO_HOME:=$HOME/.cargo}" "${RUSTUP_HOME:=$HOME/.rustup}"

if ! [ -e "$root/etc/debian_version" ]; then
    mmdebstrap --quiet --mode=root --variant=minbase bookworm "$root"
    mkdir -p "$root$CARGO_HOME" "$root$RUSTUP_HOME"
    for file in /etc/resolv.conf /etc/pip.conf; do
        [ ! -e "$file" ] || cp "$file" "$root/etc/"
    done
fi
# With those of a proxy, if this machine trusts any. Debian's package replaces the file below /etc.
certificates=/usr/local/share/certificates.pem
cp /etc/ssl/certs/ca-certificates.crt "$root$certificates"
rm -rf "$root/src"
git clone --quiet "$checkout" "$root/src"
[ $# -gt 0 ] || set -- .ci/run

export SSL_CERT_FILE=$certificates PIP_CERT=$certificates REQUESTS_CA_BUNDLE=$certificates
export CURL_CA_BUNDLE=$certificates CARGO_HTTP_CAINFO=$certificates GIT_SSL_CAINFO=$certificates
export root CARGO_HOME RUSTUP_HOME HOME=/root LANG=C.UTF-8 TERM=dumb CI=true
unset TMPDIR
exec unshare --mount --propagation private sh -eu -c '
    mount --bind "$root" "$root"
    for directory in /proc /sys /dev; do
        mount --rbind "$directory" "$root$directory"
    done
    for directory in "$CARGO_HOME" "$RUSTUP_HOME"; do
        mount --bind "$directory" "$root$directory"
    done
    export PATH="$CARGO_HOME/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # Not chroot, in which the kernel refuses user namespaces.
    cd "$root"
    pivot_root . mnt
    exec chroot . sh -eu -c "umount --lazy /mnt; cd /src; exec \"\$@\"" sh "$@"
' sh "$@"
