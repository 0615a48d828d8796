"""A program of a user of Flowcept, who has changed the import. `profiler export flowcept` then writes
what Flowcept's own readers and reports take."""

import os
import sys
import time

from profiler.flowcept import Flowcept, FlowceptLoop, flowcept_task


@flowcept_task(output_names="product")
def multiply(x, y):
    end = time.process_time() + 0.1
    while time.process_time() < end:
        sum(range(1000))
    return x * y


@flowcept_task(tags=["output"])
def write(path, size):
    with open(path, "wb") as file:
        file.write(bytes(size))
        os.fsync(file.fileno())
    # A region is read at both ends if it is not too short.
    time.sleep(0.05)
    return {"bytes": size}


@flowcept_task
def fail():
    raise ValueError("as intended")


with Flowcept(workflow_name="products", start_run=False):
    for step in FlowceptLoop(range(2), loop_name="steps", item_name="step"):
        product = multiply(step, 3)
        write(sys.argv[1], 4_000_000 + product)
    try:
        fail()
    except ValueError:
        pass
