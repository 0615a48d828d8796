#!/bin/sh
# Creates a Debian 13 with PyTorch and Open MPI in directory $1, and installs the wheels that $2 lists, with the
# pip of the Python $3. Requires root and a mirror, and takes minutes.
set -e
root=$1
requirements=$2
python=$3
partial=$root.partial
rm -rf "$partial" "$root"
mmdebstrap --quiet --mode=root --variant=essential --aptopt='APT::Install-Recommends "false"' \
    --include=python3-torch,python3-mpi4py,openmpi-bin trixie "$partial"
# This Debian has glibc 2.41.
machine=$(uname -m)
set -- --platform "manylinux2014_$machine"
for minor in $(seq 17 41); do
    set -- "$@" --platform "manylinux_2_${minor}_$machine"
done
"$python" -m pip install -q --root-user-action ignore --require-hashes --no-deps --only-binary :all: \
    --python-version 3.13 --ignore-requires-python "$@" \
    --target "$partial/usr/local/lib/python3.13/dist-packages" -r "$requirements"
cp "$requirements" "$partial/requirements.txt"
mv "$partial" "$root"
