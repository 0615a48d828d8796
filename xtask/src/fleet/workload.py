"""Programs whose samples `cargo xtask fleet` records: workload.py KIND DIRECTORY. They run for 61 s."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time


def compute(rank: int) -> None:
    """Computes for most of the time, then waits for the others."""
    block = bytes(1 << 20)
    while True:
        for _ in range(random.randint(100, 300)):
            hashlib.sha256(block)
        time.sleep(0.1 + 0.05 * rank)


def io(rank: int) -> None:
    """Reads and writes files, with metadata operations and fsync."""
    block = os.urandom(256 << 10)
    while True:
        os.mkdir(f"{rank}")
        for number in range(4):
            with open(f"{rank}/{number}", "wb") as file:
                for _ in range(random.randint(4, 20)):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            with open(f"{rank}/{number}", "rb") as file:
                while file.read(64 << 10):
                    pass
            os.remove(f"{rank}/{number}")
        os.rmdir(f"{rank}")
        time.sleep(0.5)


def pipeline(rank: int) -> None:
    """Starts a short process every few seconds, and computes itself."""
    while True:
        subprocess.run("seq 1 40000 | sort -rn | tail -n 1 > /dev/null", shell=True, check=True)
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        time.sleep(3)


def wait_often(rank: int) -> None:
    """Sleeps for most of the time."""
    while True:
        time.sleep(0.5)
        hashlib.sha256(bytes(1 << 20))


def main() -> None:
    kind, directory = {one.__name__: one for one in (compute, io, pipeline, wait_often)}[sys.argv[1]], sys.argv[2]
    os.chdir(directory)
    ranks = []
    for rank in range(8):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            random.seed(rank)
            kind(rank)
    time.sleep(61)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)


main()
