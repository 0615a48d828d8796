"""Prints what psutil knows of the node: CPU frequency in MHz and addresses of interfaces, as JSON."""

import json
import socket

import psutil

families = {socket.AF_INET: "inet", socket.AF_INET6: "inet6", psutil.AF_LINK: "packet"}
addresses = {
    name: sorted(
        [families[found.family], found.address.split("%")[0], found.netmask, found.broadcast]
        for found in all
    )
    for name, all in psutil.net_if_addrs().items()
}
print(json.dumps({"mhz": psutil.cpu_freq().current, "addresses": addresses}))
