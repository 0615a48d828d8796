/*
 * Stub of libnvidia-ml.so.1: the functions that the profiler calls, with the types of NVIDIA's nvml.h.
 *
 * The results come from a text file in the same directory, whose name is that of the library with
 * ".script" appended. It is read at each call. A line is a device ("gpu0", "gpu1", "mig0" … or "nvml"),
 * a key, and values. A first value "error" returns the code that follows; "sleep" waits that many
 * milliseconds and continues with the next value; "hold" makes a file ".held" beside the script and
 * waits until it is removed; "log" appends the device and the key to a file ".log" beside it. A missing
 * key is not supported.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;
struct device {
    char name[16];
};

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

/* 16 GPUs, 16 instances. */
static struct device gpus[16], instances[16];

static void hold(const char *script) {
    char path[4096];
    struct timespec time = {0, 1000000};
    snprintf(path, sizeof path, "%s.held", script);
    fclose(fopen(path, "w"));
    while (access(path, F_OK) == 0) {
        nanosleep(&time, NULL);
    }
}

static void append(const char *script, const char *device, const char *key) {
    char path[4096];
    snprintf(path, sizeof path, "%s.log", script);
    FILE *file = fopen(path, "a");
    fprintf(file, "%s %s\n", device, key);
    fclose(file);
}

static void nap(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0) {
    }
}

/* The values of a key as one string, or an error code. */
static nvmlReturn_t look_up(const char *device, const char *key, char *values, size_t size) {
    char path[4096], line[4096];
    Dl_info self;
    if (dladdr((void *)look_up, &self) == 0) {
        return 999;
    }
    snprintf(path, sizeof path, "%s.script", self.dli_fname);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 999;
    }
    nvmlReturn_t code = NOT_SUPPORTED;
    values[0] = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        char *rest = line;
        char *first = strsep(&rest, " \n"), *second = strsep(&rest, " \n");
        if (second == NULL || rest == NULL || strcmp(first, device) != 0 || strcmp(second, key) != 0) {
            continue;
        }
        rest[strcspn(rest, "\n")] = 0;
        snprintf(values, size, "%s", rest);
        code = SUCCESS;
    }
    fclose(file);
    long ms;
    int used;
    if (sscanf(values, "sleep %ld%n", &ms, &used) == 1) {
        nap(ms);
        memmove(values, values + used, strlen(values + used) + 1);
        memmove(values, values + strspn(values, " "), strlen(values + strspn(values, " ")) + 1);
    }
    if (strncmp(values, "hold ", 5) == 0) {
        hold(path);
        memmove(values, values + 5, strlen(values + 5) + 1);
    }
    if (strncmp(values, "log ", 4) == 0) {
        append(path, device, key);
        memmove(values, values + 4, strlen(values + 4) + 1);
    }
    sscanf(values, "error %d", &code);
    return code;
}

/* Up to four numbers. */
static nvmlReturn_t numbers(nvmlDevice_t device, const char *key, unsigned long long *out, int count) {
    char values[4096];
    nvmlReturn_t code = look_up(device->name, key, values, sizeof values);
    char *at = values;
    for (int i = 0; i < count; i++) {
        out[i] = strtoull(at, &at, 10);
    }
    return code;
}

static nvmlReturn_t number(nvmlDevice_t device, const char *key, unsigned int *out) {
    unsigned long long value = 0;
    nvmlReturn_t code = numbers(device, key, &value, 1);
    *out = (unsigned int)value;
    return code;
}

static nvmlReturn_t string(nvmlDevice_t device, const char *key, char *out, unsigned int length) {
    char values[4096];
    nvmlReturn_t code = look_up(device->name, key, values, sizeof values);
    if (code == SUCCESS) {
        snprintf(out, length, "%s", values);
    }
    return code;
}

nvmlReturn_t nvmlInit_v2(void) {
    for (int i = 0; i < 16; i++) {
        snprintf(gpus[i].name, sizeof gpus[i].name, "gpu%d", i);
        snprintf(instances[i].name, sizeof instances[i].name, "mig%d", i);
    }
    char values[4096];
    nvmlReturn_t code = look_up("nvml", "init", values, sizeof values);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

nvmlReturn_t nvmlShutdown(void) {
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int length) {
    snprintf(out, length, "550.54.15");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    struct device nvml = {"nvml"};
    return number(&nvml, "count", count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int ignored;
    *device = &gpus[index % 16];
    nvmlReturn_t code = number(*device, "handle", &ignored);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    *index = (unsigned int)(device - gpus);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length) {
    return string(device, "uuid", out, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int length) {
    return string(device, "name", out, length);
}

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    unsigned long long at[3];
    nvmlReturn_t code = numbers(device, "pci", at, 3);
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned int)at[0];
    pci->bus = (unsigned int)at[1];
    pci->device = (unsigned int)at[2];
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return code;
}

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    unsigned long long values[2];
    nvmlReturn_t code = numbers(device, "utilization", values, 2);
    utilization->gpu = (unsigned int)values[0];
    utilization->memory = (unsigned int)values[1];
    return code;
}

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (memory->version != (sizeof *memory | 2 << 24)) {
        return 25;
    }
    unsigned long long values[3];
    nvmlReturn_t code = numbers(device, "memory", values, 3);
    memory->total = values[0];
    memory->reserved = values[1];
    memory->used = values[2];
    memory->free = memory->total - memory->reserved - memory->used;
    return code;
}

/* Graphics, SM, memory, video. */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    unsigned long long values[4];
    nvmlReturn_t code = numbers(device, "clocks", values, 4);
    *mhz = (unsigned int)values[type & 3];
    return code;
}

/* Graphics, SM, memory, video. */
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    unsigned long long values[4];
    nvmlReturn_t code = numbers(device, "max_clocks", values, 4);
    *mhz = (unsigned int)values[type & 3];
    return code;
}

typedef struct {
    unsigned long long total, free, used;
} nvmlBAR1Memory_t;

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    unsigned long long values[2];
    nvmlReturn_t code = numbers(device, "bar1", values, 2);
    memory->total = values[0];
    memory->used = values[1];
    memory->free = memory->total - memory->used;
    return code;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 12040;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned int length) {
    return string(device, "vbios", out, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned int length) {
    return string(device, "serial", out, length);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *out, unsigned int length) {
    return string(device, "part", out, length);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t code = number(device, "ecc_mode", current);
    *pending = *current;
    return code;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most) {
    unsigned long long values[2];
    nvmlReturn_t code = numbers(device, "power_limits", values, 2);
    *least = (unsigned int)values[0];
    *most = (unsigned int)values[1];
    return code;
}

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long ulVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

/* "gpu0 field138.4294967295 3 17": type 3 (unsigned long long), value 17. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    unsigned int ignored;
    nvmlReturn_t all = number(device, "fields", &ignored);
    if (all != NOT_SUPPORTED) {
        return all;
    }
    for (int i = 0; i < count; i++) {
        char key[64];
        unsigned long long values[2];
        snprintf(key, sizeof key, "field%u.%u", fields[i].fieldId, fields[i].scopeId);
        fields[i].nvmlReturn = numbers(device, key, values, 2);
        fields[i].valueType = (int)values[0];
        if (fields[i].valueType == 1) {
            fields[i].value.uiVal = (unsigned int)values[1];
        } else {
            fields[i].value.ullVal = values[1];
        }
    }
    return SUCCESS;
}

#define NUMBER(function, key)                                            \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) {      \
        return number(device, key, out);                                 \
    }

NUMBER(nvmlDeviceGetPerformanceState, "p_state")
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetNumFans, "fans")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_pcie_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetGpuInstanceId, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "compute_instance")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_count")

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj) {
    return numbers(device, "energy", mj, 1);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out) {
    return sensor == 0 ? number(device, "temperature", out) : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *out) {
    char key[32];
    snprintf(key, sizeof key, "fan%u", fan);
    return number(device, key, out);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long *out) {
    /* Counter 1 is that of the life of the GPU. */
    char key[32];
    snprintf(key, sizeof key, "ecc_%scorrected%s", kind == 0 ? "" : "un", counter == 0 ? "" : "_total");
    return numbers(device, key, out, 1);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *out) {
    return numbers(device, "throttle", out, 1);
}

static nvmlReturn_t engine(nvmlDevice_t device, const char *key, unsigned int *percent, unsigned int *period_us) {
    *period_us = 166666;
    return number(device, key, percent);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period) {
    return engine(device, "encoder", percent, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period) {
    return engine(device, "decoder", percent, period);
}

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

/* "gpu0 compute PID BYTES GI CI PID …". */
static nvmlReturn_t processes(nvmlDevice_t device, const char *key, unsigned int *count, nvmlProcessInfo_t *out) {
    char values[4096];
    nvmlReturn_t code = look_up(device->name, key, values, sizeof values);
    if (code != SUCCESS) {
        return code;
    }
    unsigned int found = 0, room = out == NULL ? 0 : *count;
    char *at = values;
    for (;;) {
        char *end;
        unsigned int pid = (unsigned int)strtoul(at, &end, 10);
        if (end == at) {
            break;
        }
        nvmlProcessInfo_t info = {.pid = pid};
        info.usedGpuMemory = strtoull(end, &at, 10);
        info.gpuInstanceId = (unsigned int)strtoul(at, &at, 10);
        info.computeInstanceId = (unsigned int)strtoul(at, &at, 10);
        if (found < room) {
            out[found] = info;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    return processes(device, "compute", count, out);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    return processes(device, "graphics", count, out);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    return processes(device, "mps", count, out);
}

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

/* "gpu0 samples PID TIME SM MEM ENC DEC PID …": samples later than the time given by the caller. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                             unsigned int *count, unsigned long long seen) {
    char values[4096];
    nvmlReturn_t code = look_up(device->name, "samples", values, sizeof values);
    if (code != SUCCESS) {
        return code;
    }
    unsigned int found = 0, room = out == NULL ? 0 : *count;
    char *at = values;
    for (;;) {
        char *end;
        nvmlProcessUtilizationSample_t sample;
        sample.pid = (unsigned int)strtoul(at, &end, 10);
        if (end == at) {
            break;
        }
        sample.timeStamp = strtoull(end, &at, 10);
        sample.smUtil = (unsigned int)strtoul(at, &at, 10);
        sample.memUtil = (unsigned int)strtoul(at, &at, 10);
        sample.encUtil = (unsigned int)strtoul(at, &at, 10);
        sample.decUtil = (unsigned int)strtoul(at, &at, 10);
        if (sample.timeStamp <= seen) {
            continue;
        }
        if (found < room) {
            out[found] = sample;
        }
        found++;
    }
    if (found == 0) {
        return NOT_FOUND;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t code = number(device, "mig", current);
    *pending = *current;
    return code;
}

/* "gpu0 mig_instance0 2": the first instance of gpu0 is "mig2". */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance) {
    char key[32];
    unsigned int which;
    snprintf(key, sizeof key, "mig_instance%u", index);
    nvmlReturn_t code = number(device, key, &which);
    *instance = &instances[which % 16];
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    return number(device, "gpm", &support->isSupportedDevice);
}

typedef struct {
    nvmlDevice_t device;
    unsigned int instance;
} *nvmlGpmSample_t;

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    free(sample);
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    unsigned int ignored;
    sample->device = device;
    sample->instance = ~0u;
    nvmlReturn_t code = number(device, "gpm_sample", &ignored);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample) {
    sample->device = device;
    sample->instance = instance;
    return SUCCESS;
}

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

/* "gpu0 gpm3 47.5"; for an instance "gpu0 gpm3.1 12.5". */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    if (get->version != 1 || get->sample1 == get->sample2) {
        return 2;
    }
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &get->metrics[i];
        char key[64], values[4096];
        if (get->sample2->instance == ~0u) {
            snprintf(key, sizeof key, "gpm%u", metric->metricId);
        } else {
            snprintf(key, sizeof key, "gpm%u.%u", metric->metricId, get->sample2->instance);
        }
        metric->nvmlReturn = look_up(get->sample2->device->name, key, values, sizeof values);
        metric->value = strtod(values, NULL);
    }
    return SUCCESS;
}
