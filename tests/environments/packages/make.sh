#!/bin/sh
# Creates a minimal Debian of the release $1 as archive $2. Requires root and a mirror, and takes a
# minute.
set -e
trap 'rm -f "$2.partial"' EXIT
mmdebstrap --quiet --mode=root --variant=minbase --format=tar \
    --aptopt='APT::Install-Recommends "false"' \
    --include=libcap2-bin,python3-venv,xz-utils \
    "$1" "$2.partial"
mv "$2.partial" "$2"
