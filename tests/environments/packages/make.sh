#!/bin/sh
# Creates a minimal Debian as archive $1. Requires root and a mirror, and takes a minute.
set -e
trap 'rm -f "$1.partial"' EXIT
mmdebstrap --quiet --mode=root --variant=minbase --format=tar \
    --aptopt='APT::Install-Recommends "false"' \
    --include=libcap2-bin \
    bookworm "$1.partial"
mv "$1.partial" "$1"
