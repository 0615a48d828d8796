"""Work of known size on the first NVIDIA GPU, through the driver's library alone.

cuda_load.py KIND SECONDS prints as JSON what it did: to-device and from-device copy between the memories,
memory writes device memory, fma multiplies and adds in single precision.
"""

import ctypes
import json
import sys
import time

MIB = 1 << 20
# Device memory in use, and the size of a copy.
SIZE = 1024 * MIB
THREADS, LOOPS, CHAINS = 256, 4096, 16

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise OSError(f"{name}: error {code}")


def attribute(number):
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def kernel():
    """Each thread executes `CHAINS` independent FMAs, `LOOPS` times."""
    sums = "".join(f"mov.f32 %f{number}, %f0;\n" for number in range(2, CHAINS + 2))
    steps = "".join(
        f"fma.rn.f32 %f{number}, %f{number}, %f0, %f1;\n" for number in range(2, CHAINS + 2)
    )
    total = "".join(f"add.f32 %f1, %f1, %f{number};\n" for number in range(2, CHAINS + 2))
    code = f"""
        .version 6.0
        .target sm_50
        .address_size 64
        .visible .entry work(.param .u64 output)
        {{
            .reg .f32 %f<{CHAINS + 2}>;
            .reg .b32 %r<4>;
            .reg .b64 %rd<2>;
            .reg .pred %p;
            ld.param.u64 %rd1, [output];
            mov.u32 %r1, %tid.x;
            cvt.rn.f32.u32 %f0, %r1;
            mov.f32 %f1, %f0;
            {sums}
            mov.u32 %r2, 0;
        again:
            {steps}
            add.u32 %r2, %r2, 1;
            setp.lt.u32 %p, %r2, {LOOPS};
            @%p bra again;
            {total}
            st.global.f32 [%rd1], %f1;
            ret;
        }}
    """
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), code.encode())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"work")
    return function


kind, seconds = sys.argv[1], float(sys.argv[2])
device, context = ctypes.c_int(), ctypes.c_void_p()
memory, host = ctypes.c_uint64(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
size, words = ctypes.c_size_t(SIZE), ctypes.c_size_t(SIZE // 4)
blocks = 32 * attribute(16)

if kind == "fma":
    function = kernel()
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))

    def step():
        call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None)

elif kind == "memory":

    def step():
        call("cuMemsetD32Async", memory, 1, words, None)

else:
    call("cuMemAllocHost_v2", ctypes.byref(host), size)

    def step():
        if kind == "to-device":
            call("cuMemcpyHtoDAsync_v2", memory, host, size, None)
        else:
            call("cuMemcpyDtoHAsync_v2", host, memory, size, None)


step()
call("cuCtxSynchronize")
begin, steps = time.monotonic(), 0
while time.monotonic() < begin + seconds:
    for _ in range(8):
        step()
    call("cuCtxSynchronize")
    steps += 8
took = time.monotonic() - begin
print(
    json.dumps(
        {
            "seconds": took,
            # With the first step.
            "steps": steps + 1,
            "bytes": 0 if kind == "fma" else SIZE * (steps + 1),
            "flop": 2 * CHAINS * LOOPS * THREADS * blocks * steps if kind == "fma" else 0,
            "bytes_per_second": 0 if kind == "fma" else SIZE * steps / took,
            "memory": SIZE,
            "multiprocessors": attribute(16),
            # Width of the memory bus in bits × clock in kHz, twice in each cycle.
            "memory_bandwidth": attribute(37) / 8 * attribute(36) * 1e3 * 2,
        }
    )
)
