"""Reads the files of perfmon as its documentation does, and prints what it finds as JSON:
perfmon.py DIRECTORY"""

import json
import sys
from pathlib import Path

import pandas

directory = Path(sys.argv[1])
# Of the JSON documents: path of keys, and header in the data frames.
COLUMNS = {
    "cpu_time": "CPU time [s]",
    "memory_percent": "Memory [%]",
    "memory_info.rss": "Memory RSS [bytes]",
    "net_io_counters.bytes_sent": "Sent data [bytes]",
    "ib_io_counters.port_xmit_data": "IB sent data [bytes]",
    "io_counters.write_bytes": "IO write data [bytes]",
    "rapl_powercap.package-0": "RAPL package 0 [uJ]",
    "rapl_powercap.dram-0": "RAPL dram 0 [uJ]",
    "software_events.context-switches": "context-switches",
    "utilization_rates.gpu": "GPU utilization [%]",
}


# The schemas of perfmon's documentation. Lists of numbers; `None` for any keys.
TRAFFIC = {"bytes_sent", "bytes_recv", "packets_sent", "packets_recv"}
PORTS = {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"}
FILES = {"read_bytes", "read_count", "write_bytes", "write_count"}
SCHEMAS = {
    "cpu_metrics": {
        "always": {
            "time_stamps": [],
            "cpu_time": [],
            "cpu_percent": [],
            "cpu_percent_sys": [],
            "net_io_counters": TRAFFIC,
            "memory_info": {"rss", "vms", "shared"},
            "memory_full_info": {"uss", "swap"},
            "memory_percent": [],
            "io_counters": FILES,
            "num_threads": [],
            "num_fds": [],
            "parent_proc_md": None,
            "child_proc_md": [],
        },
        "sometimes": {"ib_io_counters": PORTS, "memory_bw": [], "rapl_powercap": None},
    },
    "perf_metrics": {
        "always": {
            "time_stamps": [],
            "hardware_events": None,
            "software_events": None,
            "L2": None,
            "L2cache": None,
            "L3": None,
            "L3cache": None,
            "FLOPS_SP": None,
            "FLOPS_DP": None,
        },
        "sometimes": {},
    },
    "nv_gpu_metrics": {
        "always": {
            "time_stamps": [],
            "clock_info": {"graphics", "sm", "memory"},
            "ecc_errors": {"sp", "dp"},
            "memory_used": {"gpu_memory", "bar1_memory"},
            "utilization_rates": {"gpu", "memory"},
            "encoder_util": [],
            "decoder_util": [],
            "power_usage": [],
            "violation": [],
            "temperature": [],
            "fan_speed": [],
            "num_procs": [],
            "pci_thgpt": {"send", "recv"},
        },
        "sometimes": {},
    },
}


def validate(schema, host):
    """The keys of a host are those of perfmon, each with a list or the object of its keys."""
    allowed = schema["always"] | schema["sometimes"]
    assert schema["always"].keys() <= host.keys() <= allowed.keys(), host.keys() ^ allowed.keys()
    for key, value in host.items():
        if allowed[key] == []:
            assert isinstance(value, list), key
        else:
            assert isinstance(value, dict), key
            assert allowed[key] is None or value.keys() == allowed[key], (key, value.keys())


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def lists(node, length, path=""):
    """All lists of numbers below a node, which have the same length."""
    found = {}
    for key, value in node.items():
        below = f"{path}{key}"
        if isinstance(value, dict) and key != "parent_proc_md":
            found |= lists(value, length, f"{below}.")
        elif isinstance(value, list) and key != "child_proc_md":
            assert len(value) == length, below
            assert all(number is None or isinstance(number, (int, float)) for number in value), below
            found[below] = value
    return found


def same(frame, other):
    pandas.testing.assert_frame_equal(frame, other, check_dtype=False)
    return list(frame.columns)


result = {}
for metric in ["cpu_metrics", "perf_metrics", "nv_gpu_metrics"]:
    path = directory / "metrics" / f"{metric}.json"
    if not path.exists():
        continue
    metrics = json.loads(path.read_text(), parse_constant=refuse)
    frame = pandas.read_csv(directory / f"{metric}.csv")
    columns = same(frame, pandas.read_parquet(directory / f"{metric}.parquet"))
    same(frame, pandas.read_feather(directory / f"{metric}.feather"))
    values = {}
    for host in metrics["host_names"]:
        validate(SCHEMAS[metric], metrics[host])
        values[host] = lists(metrics[host], len(metrics[host]["time_stamps"]))
        rows = frame[frame["Host"] == host]
        assert list(rows["Timestamps"]) == metrics[host]["time_stamps"]
        for key, header in COLUMNS.items():
            if key in values[host]:
                column = [None if pandas.isna(value) else value for value in rows[header]]
                assert column == values[host][key], key
            elif header in columns:
                assert rows[header].isna().all(), key
    keys = [*metrics]
    assert keys == sorted(keys, key=lambda key: (key == "sampling_frequency", key != "host_names")), keys
    result[metric] = {"values": values, "columns": columns, "sampling_frequency": metrics["sampling_frequency"]}

# Forward difference of the energy.
metrics = json.loads((directory / "metrics" / "cpu_metrics.json").read_text())
result["watts"] = {}
for host in metrics["host_names"]:
    for domain, energy in metrics[host].get("rapl_powercap", {}).items():
        times = metrics[host]["time_stamps"]
        steps = [index for index in range(len(times) - 1) if None not in energy[index : index + 2]]
        microjoules = sum(energy[index + 1] - energy[index] for index in steps)
        seconds = sum(times[index + 1] - times[index] for index in steps)
        result["watts"][domain] = microjoules / seconds / 1e6
result["root"] = {host: metrics[host]["parent_proc_md"] for host in metrics["host_names"]}
result["descendants"] = {
    host: [json.loads(text) for text in metrics[host]["child_proc_md"]] for host in metrics["host_names"]
}
result["machine"] = json.loads((directory / "metrics" / "meta_data.json").read_text())
result["events"] = json.loads((directory / ".perf_event_list.json").read_text())
result["configs"] = sorted(path.name for path in (directory / "configs").iterdir())
print(json.dumps(result))
