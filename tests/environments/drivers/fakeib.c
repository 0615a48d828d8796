// SPDX-License-Identifier: GPL-2.0
/*
 * Simulated InfiniBand adapters, registered with the kernel's RDMA core. The core creates their sysfs
 * files; the counters are functions of time.
 *
 * fake0 has two ports (`ports=1`: one) with 64-bit counters. Port N has N times the rates below.
 * fake1 has one port, with the rates of port 1 of fake0. It simulates the oldest adapters: counters of
 * 32 bits and less saturate at their maximum, those of data FILLS_AFTER_NS after the start.
 *
 * /sys/module/fakeib/parameters: writing to `reset` resets all counters; `down` is a bit mask of the
 * ports whose link is down. Their counters stop, and restart from 0 when the link comes back.
 */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_verbs.h>

/* Rates per second of port 1; tests/kernel/devices/fabric.rs expects them. */
#define XMIT_WORDS	25000000ULL
#define RCV_WORDS	12500000ULL
#define XMIT_PACKETS	30000
#define RCV_PACKETS	20000
#define MULTICAST	500
#define XMIT_WAIT	7000
#define RCV_ERRORS	300
#define XMIT_DISCARDS	200
#define SYMBOL_ERRORS	100
/* Four bits: saturates at once. */
#define INTEGRITY_ERRORS	1000
#define PORT_REQUESTS	4000
#define PORT_RETRIES	1500
#define DEVICE_COMMANDS	2500

#define FILLS_AFTER_NS	(4 * NSEC_PER_SEC)

#define PORTS 2

static unsigned int ports = PORTS;
module_param(ports, uint, 0444);

static u64 start[PORTS + 1];
static u64 stopped[PORTS + 1];
static unsigned long links_down;
static u8 downs[PORTS + 1];

struct adapter {
	struct ib_device ib;
	bool extended;
};

static struct adapter *adapters[2];

/* Value of a counter with this rate per second. */
static u64 count(u32 port, u64 per_second)
{
	u64 now = test_bit(port, &links_down) ? stopped[port] : ktime_get_ns();

	return mul_u64_u64_div_u64(now - start[port], per_second * port, NSEC_PER_SEC);
}

static u64 full_at(u64 value, unsigned int bits)
{
	return min(value, BIT_ULL(bits) - 1);
}

/* Counter of 32 bits that is nearly full at the start. */
static __be32 words(u32 port, u64 per_second)
{
	u64 room = div_u64(per_second * FILLS_AFTER_NS, NSEC_PER_SEC);

	return cpu_to_be32(full_at(U32_MAX - room + count(port, per_second), 32));
}

static void port_counters(u32 port, struct ib_pma_portcounters *to)
{
	to->symbol_error_counter = cpu_to_be16(full_at(count(port, SYMBOL_ERRORS), 16));
	to->link_downed_counter = downs[port];
	to->port_rcv_errors = cpu_to_be16(full_at(count(port, RCV_ERRORS), 16));
	to->port_xmit_discards = cpu_to_be16(full_at(count(port, XMIT_DISCARDS), 16));
	to->link_overrun_errors = full_at(count(port, INTEGRITY_ERRORS), 4) << 4;
	to->port_xmit_data = words(port, XMIT_WORDS);
	to->port_rcv_data = words(port, RCV_WORDS);
	to->port_xmit_packets = cpu_to_be32(full_at(count(port, XMIT_PACKETS), 32));
	to->port_rcv_packets = cpu_to_be32(full_at(count(port, RCV_PACKETS), 32));
	to->port_xmit_wait = cpu_to_be32(full_at(count(port, XMIT_WAIT), 32));
}

static void port_counters_extended(u32 port, struct ib_pma_portcounters_ext *to)
{
	to->port_xmit_data = cpu_to_be64(count(port, XMIT_WORDS));
	to->port_rcv_data = cpu_to_be64(count(port, RCV_WORDS));
	to->port_xmit_packets = cpu_to_be64(count(port, XMIT_PACKETS));
	to->port_rcv_packets = cpu_to_be64(count(port, RCV_PACKETS));
	to->port_multicast_xmit_packets = cpu_to_be64(count(port, MULTICAST));
}

/* Performance management agent, from which the RDMA core reads `counters`. */
static int process_mad(struct ib_device *ib, int flags, u32 port, const struct ib_wc *wc,
		       const struct ib_grh *grh, const struct ib_mad *in, struct ib_mad *out,
		       size_t *size, u16 *pkey)
{
	struct adapter *adapter = container_of(ib, struct adapter, ib);
	void *data = ((struct ib_pma_mad *)out)->data;
	struct ib_class_port_info *info = data;

	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT)
		return IB_MAD_RESULT_SUCCESS;
	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		info->capability_mask = adapter->extended ? IB_PMA_CLASS_CAP_EXT_WIDTH : 0;
		break;
	case IB_PMA_PORT_COUNTERS:
		port_counters(port, data);
		break;
	case IB_PMA_PORT_COUNTERS_EXT:
		port_counters_extended(port, data);
		break;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

static const struct rdma_stat_desc port_stats[] = {
	{ .name = "port_requests" },
	{ .name = "port_retries" },
};

static const struct rdma_stat_desc device_stats[] = {
	{ .name = "device_commands" },
};

static struct rdma_hw_stats *alloc_hw_port_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(port_stats, ARRAY_SIZE(port_stats),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static struct rdma_hw_stats *alloc_hw_device_stats(struct ib_device *ib)
{
	return rdma_alloc_hw_stats_struct(device_stats, ARRAY_SIZE(device_stats),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

/* Port 0 is the device. */
static int get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	if (port) {
		stats->value[0] = count(port, PORT_REQUESTS);
		stats->value[1] = count(port, PORT_RETRIES);
	} else {
		stats->value[0] = count(1, DEVICE_COMMANDS);
	}
	return stats->num_counters;
}

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *data)
{
	attr->max_pkeys = 1;
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	bool up = !test_bit(port, &links_down);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_POLLING;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = up ? IB_SPEED_HDR : IB_SPEED_SDR;
	attr->max_mtu = attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = attr->pkey_tbl_len = 1;
	return 0;
}

static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *to)
{
	to->gid_tbl_len = to->pkey_tbl_len = 1;
	return 0;
}

static int query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[0] = 0xfe;
	gid->raw[1] = 0x80;
	gid->raw[15] = port;
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,
	.alloc_hw_device_stats = alloc_hw_device_stats,
	.alloc_hw_port_stats = alloc_hw_port_stats,
	.get_hw_stats = get_hw_stats,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.process_mad = process_mad,
	.query_device = query_device,
	.query_gid = query_gid,
	.query_pkey = query_pkey,
	.query_port = query_port,
};

static int set_reset(const char *text, const struct kernel_param *param)
{
	u32 port;

	for (port = 1; port <= PORTS; port++)
		start[port] = stopped[port] = ktime_get_ns();
	return 0;
}

static int set_down(const char *text, const struct kernel_param *param)
{
	unsigned long next;
	int error = kstrtoul(text, 0, &next);
	u32 port;

	if (error)
		return error;
	for (port = 1; port <= PORTS; port++) {
		bool was = test_bit(port, &links_down), is = test_bit(port, &next);

		if (!was && is) {
			stopped[port] = ktime_get_ns();
			downs[port]++;
		} else if (was && !is) {
			start[port] = ktime_get_ns();
		}
	}
	links_down = next;
	return 0;
}

static const struct kernel_param_ops reset_ops = { .set = set_reset };
static const struct kernel_param_ops down_ops = { .set = set_down };

module_param_cb(reset, &reset_ops, NULL, 0200);
module_param_cb(down, &down_ops, NULL, 0200);

static int add(struct adapter **to, const char *name, u32 ports, bool extended)
{
	struct adapter *adapter = ib_alloc_device(adapter, ib);
	int error;

	if (!adapter)
		return -ENOMEM;
	adapter->extended = extended;
	adapter->ib.node_type = RDMA_NODE_IB_CA;
	adapter->ib.phys_port_cnt = ports;
	adapter->ib.num_comp_vectors = 1;
	adapter->ib.node_guid = cpu_to_be64(extended + 1);
	ib_set_device_ops(&adapter->ib, &ops);
	error = ib_register_device(&adapter->ib, name, NULL);
	if (error)
		ib_dealloc_device(&adapter->ib);
	else
		*to = adapter;
	return error;
}

static void remove_all(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(adapters); i++) {
		if (!adapters[i])
			continue;
		ib_unregister_device(&adapters[i]->ib);
		ib_dealloc_device(&adapters[i]->ib);
	}
}

static int __init fakeib_init(void)
{
	int error;

	if (ports < 1 || ports > PORTS)
		return -EINVAL;
	set_reset(NULL, NULL);
	error = add(&adapters[0], "fake0", ports, true);
	if (!error)
		error = add(&adapters[1], "fake1", 1, false);
	if (error)
		remove_all();
	return error;
}

module_init(fakeib_init);
module_exit(remove_all);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("InfiniBand adapters whose counters are functions of time");
